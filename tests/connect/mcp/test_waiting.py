"""Callers that wait, leave, come back and ask again: one call, one effect."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult, InputRequiredResult

from keyturn.connect.mcp import calls, server
from keyturn.connect.mcp.calls import Caller
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.protocol.records import ItemState, Person
from tests.conftest import eventually
from tests.connect.mcp.conftest import (
    AUTO_AND_HELD,
    LONG_S,
    SHORT_S,
    World,
    legacy,
    modern,
    until,
)
from tests.connect.mcp.test_calls import text_of

ARGS = {"to": "ada", "amount": 5}


def ticket_of(result: Any) -> str:
    """Return the ticket in a result."""
    assert result.is_error
    return ticket_in(text_of(result))


def ticket_in(text: str) -> str:
    """Return the ticket in the words of a result."""
    found = re.search(r"\b[a-z]+\.[0-9a-f]{24}\.[0-9a-f]{8}\b", text)
    assert found, text
    return found[0]


async def collect(client: Any, ticket: str) -> Any:
    """Wait with a ticket, as often as needed."""
    while True:
        found = await client.call_tool("keyturn_wait", {"ticket": ticket})
        if ticket not in text_of(found):
            return found


async def held(client: Any, world: World) -> str:
    """Make a call, and return its ticket once people are asked."""
    ticket = ticket_of(await client.call_tool("pay", ARGS))
    while not await world.pending():
        await client.call_tool("keyturn_wait", {"ticket": ticket})
    return ticket


async def legs(client: Any, state: Any, tool: str = "pay", args: Any = None) -> Any:
    """Send a request with sealed state until its call has a result."""
    while True:
        found = await client.session.call_tool(
            tool, args or ARGS, request_state=state, allow_input_required=True
        )
        if not isinstance(found, InputRequiredResult):
            return found
        state = found.request_state


async def no_longer_waits(gate: Any) -> None:
    """Wait until no caller waits in a gate."""
    await until(lambda: not any(call.waiting for call in gate.calls.all()))


async def test_an_older_client_gets_a_ticket_and_then_the_result(world: World) -> None:
    async with world.gate(SHORT_S) as gate, legacy(gate) as client:
        ticket = ticket_of(await client.call_tool("pay", ARGS))
        again = ticket_of(await client.call_tool("keyturn_wait", {"ticket": ticket}))
        assert again == ticket
        await world.decide(Approve())
        result = await collect(client, ticket)
    assert result.structured_content == {"paid": 5, "to": "ada"}
    assert len(world.script.calls()) == 1


async def test_a_current_client_asks_again_by_itself(world: World) -> None:
    async with world.gate(SHORT_S) as gate, modern(gate) as client:
        first = await client.session.call_tool("pay", ARGS, allow_input_required=True)
        assert isinstance(first, InputRequiredResult)
        assert first.input_requests is None
        # Between its legs, the caller is not gone: an equal call is another one.
        other = await client.session.call_tool("pay", ARGS, allow_input_required=True)
        assert isinstance(other, InputRequiredResult)
        assert len(gate.calls.all()) == 2
        second = await client.session.call_tool(
            "pay", ARGS, request_state=first.request_state, allow_input_required=True
        )
        assert isinstance(second, InputRequiredResult)
        for item_id in await world.asked(2):
            await world.people.decide(item_id, Approve())
        result = await legs(client, second.request_state)
    assert result.structured_content == {"paid": 5, "to": "ada"}
    assert len(world.script.calls()) == 1


async def test_the_sdk_of_a_current_client_needs_no_ticket(world: World) -> None:
    async with world.gate(SHORT_S) as gate, modern(gate) as client:
        calling = asyncio.create_task(client.call_tool("pay", ARGS))
        await world.asked()
        await until(lambda: world.seen.paths.count("attend") >= 2)
        await world.decide(Approve())
        assert not (await calling).is_error
    assert len(world.script.calls()) == 1


async def test_a_ticket_comes_before_a_current_client_gives_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_LEGS", 3)
    async with world.gate(SHORT_S) as gate, modern(gate) as client:
        ticket = ticket_of(await client.call_tool("pay", ARGS))
        await world.decide(Approve())
    async with world.gate() as gate, modern(gate) as client:
        # The gate was restarted: its text names the next step.
        told = await client.call_tool("keyturn_wait", {"ticket": ticket})
        assert "Make the same call once more" in text_of(told)
        result = await client.call_tool("pay", ARGS)
    assert result.structured_content == {"paid": 5, "to": "ada"}
    assert await world.cards() == 1
    assert len(world.script.calls()) == 1


async def test_a_restarted_gate_knows_its_state_but_no_other(world: World) -> None:
    async with world.gate(SHORT_S) as gate, modern(gate) as client:
        first = await client.session.call_tool("pay", ARGS, allow_input_required=True)
        assert isinstance(first, InputRequiredResult)
    state = first.request_state
    async with world.gate() as gate, modern(gate) as client:
        with pytest.raises(MCPError, match="requestState"):
            await client.session.call_tool("pay", {"to": "eve"}, request_state=state)
        with pytest.raises(MCPError, match="requestState"):
            await client.session.call_tool("pay", ARGS, request_state=f"{state}x")
        calling = asyncio.create_task(
            client.session.call_tool("pay", ARGS, request_state=state)
        )
        await world.decide(Approve())
        await calling
    assert await world.cards() == 1
    assert len(world.script.calls()) == 1


async def test_an_agent_that_floods_people_is_told_to_wait(world: World) -> None:
    flood = ("protect:", "protect:\n  flood_per_10m: 1")
    world.people.put_policy(flood, of=AUTO_AND_HELD)
    async with world.gate(SHORT_S) as gate, legacy(gate) as client:
        first = await client.call_tool("pay", ARGS)
        await world.asked()
        second = text_of(await client.call_tool("pay", {**ARGS, "amount": 6}))
        await world.asked(2)
        again = await client.call_tool("keyturn_wait", {"ticket": ticket_in(second)})

    assert "combine" not in text_of(first)
    assert "2 of your calls waited" in text_of(again)


async def test_a_current_client_reads_it_with_the_result(world: World) -> None:
    flood = ("protect:", "protect:\n  flood_per_10m: 1")
    world.people.put_policy(flood, of=AUTO_AND_HELD)
    async with world.gate() as gate, modern(gate) as client:
        results: list[Any] = []
        for number in (1, 2):
            args = {**ARGS, "amount": number}
            waiting = asyncio.create_task(client.call_tool("pay", args))
            await world.decide(Approve())
            results.append(await waiting)

    texts = [text_of(one) for one in results]
    assert ["combine" in one for one in texts] == [False, True]
    assert [one.structured_content["paid"] for one in results] == [1, 2]


async def test_a_retry_after_a_time_out_continues_its_call(world: World) -> None:
    async with world.gate() as gate, modern(gate) as client:
        with pytest.raises(MCPError):
            await client.session.call_tool("pay", ARGS, read_timeout_seconds=0.3)
        await no_longer_waits(gate)
        calling = asyncio.create_task(client.call_tool("pay", ARGS))
        await world.decide(Approve())
        await calling
        assert await world.cards() == 1
        # It was collected: the same call is a new one.
        another = asyncio.create_task(client.call_tool("pay", ARGS))
        await world.decide(Reject())
        assert (await another).is_error
    assert await world.cards() == 2
    assert len(world.script.calls()) == 1


async def test_two_equal_calls_with_live_callers_are_two(world: World) -> None:
    async with world.gate() as gate, modern(gate) as client:
        calling = [asyncio.create_task(client.call_tool("pay", ARGS)) for _ in range(2)]
        for item_id in await world.asked(2):
            await world.people.decide(item_id, Approve())
        results = await asyncio.gather(*calling)
    assert not any(one.is_error for one in results)
    assert len(world.script.calls()) == 2


@pytest.mark.parametrize("name", ["claudecode/toolUseId", "dev.keyturn/call"])
async def test_a_clients_id_survives_a_restart(world: World, name: str) -> None:
    meta: Any = {name: "toolu_1"}
    async with world.gate() as gate, modern(gate) as client:
        calling = [
            asyncio.create_task(client.call_tool("pay", ARGS, meta=meta))
            for _ in range(2)
        ]
        await world.decide(Approve())
        results = await asyncio.gather(*calling)
        assert [one.structured_content for one in results] == [
            {"paid": 5, "to": "ada"}
        ] * 2
    async with world.gate() as gate, legacy(gate) as client:
        result = await client.call_tool("pay", ARGS, meta=meta)
        assert result.structured_content == {"paid": 5, "to": "ada"}
        # The same id with other arguments is another call.
        other = asyncio.create_task(client.call_tool("pay", {"to": "eve"}, meta=meta))
        await world.decide(Reject())
        assert (await other).is_error
    assert len(world.script.calls()) == 1


async def test_nothing_runs_for_a_caller_who_has_gone(world: World) -> None:
    async with world.gate(SHORT_S) as gate:
        async with legacy(gate) as client:
            ticket = await held(client, world)
            await no_longer_waits(gate)
            item_id = await world.decide(Approve())
        assert (await world.people.item(item_id)).state is ItemState.AUTHORIZED
        assert not world.script.calls()
        async with legacy(gate) as client:
            result = await collect(client, ticket)
            assert result.structured_content == {"paid": 5, "to": "ada"}
            # Collected twice: the same result, and no second effect.
            again = await collect(client, ticket)
            assert again.structured_content == {"paid": 5, "to": "ada"}
    assert len(world.script.calls()) == 1


async def test_a_running_call_is_recorded_without_its_caller(world: World) -> None:
    world.script.put(hangs=True)
    async with world.gate() as gate:
        async with modern(gate) as client:
            calling = asyncio.create_task(client.call_tool("pay", ARGS))
            item_id = await world.decide(Approve())
            await until(world.script.calls)
            calling.cancel()
            await no_longer_waits(gate)
        world.script.put()
        async with modern(gate) as client:
            result = await client.call_tool("pay", ARGS)
        assert result.structured_content == {"paid": 5, "to": "ada"}
        assert (await world.people.item(item_id)).state is ItemState.EXECUTED
    assert await world.cards() == 1
    assert len(world.script.calls()) == 1


async def test_a_ticket_of_another_person_is_none(world: World) -> None:
    who = ["ana"]

    def asking(_: object) -> Caller:
        return Caller(who[0])

    async with (
        world.gate(SHORT_S, caller=asking) as gate,
        legacy(gate) as client,
    ):
        ticket = ticket_of(await client.call_tool("pay", ARGS))
        who[0] = "ben"
        refused = await client.call_tool("keyturn_wait", {"ticket": ticket})
        assert "no ticket of yours" in text_of(refused)
        forged = await client.call_tool("keyturn_wait", {"ticket": "billing.x.y"})
        assert "no ticket of yours" in text_of(forged)
        # An equal call of another person is another call.
        other = await client.call_tool("pay", ARGS)
        assert ticket_of(other) != ticket
    assert len(await world.pending()) == 2


async def test_a_rejected_call_keeps_its_answer_for_the_ticket(world: World) -> None:
    async with world.gate(SHORT_S) as gate, legacy(gate) as client:
        ticket = await held(client, world)
    await world.decide(Reject(reason="never"))
    async with world.gate(LONG_S) as gate, legacy(gate) as client:
        result = await client.call_tool("keyturn_wait", {"ticket": ticket})
    assert '"never"' in text_of(result)


async def test_a_collected_call_is_not_made_again(world: World) -> None:
    world.script.put(hangs=True)
    async with world.gate(SHORT_S) as gate, legacy(gate) as client:
        ticket = ticket_of(await client.call_tool("look_up", {}))
        world.script.put()
        for words in ("paid", "Do not repeat it"):
            told = await collect(client, ticket)
            assert words in text_of(told)
    assert "same call" not in text_of(told)


async def test_a_repeated_state_runs_no_unrecorded_call(world: World) -> None:
    world.script.put(hangs=True)
    look: Any = ("look_up", {"n": 1})
    async with world.gate(SHORT_S) as gate, modern(gate) as client:
        first = await client.session.call_tool(*look, allow_input_required=True)
        assert isinstance(first, InputRequiredResult)
        world.script.put()
        assert not (await legs(client, first.request_state, *look)).is_error
        told = await legs(client, first.request_state, *look)
        assert "is unknown. Do not repeat it" in text_of(told)
        # Without the state it is another call.
        assert not (await client.call_tool(*look)).is_error
    async with world.gate() as gate, modern(gate) as client:
        told = await legs(client, first.request_state, *look)
        assert "is unknown. Do not repeat it" in text_of(told)
    assert len(world.script.calls()) == 2


@pytest.mark.parametrize("name", ["state", "claudecode/toolUseId"])
async def test_an_equal_call_after_a_restart_is_new(world: World, name: str) -> None:
    more: Any = {} if name == "state" else {"meta": {name: "toolu_1"}}
    async with world.gate(SHORT_S) as gate, modern(gate) as client:
        call_tool: Any = client.session.call_tool
        first = await call_tool("pay", ARGS, allow_input_required=True, **more)
        assert isinstance(first, InputRequiredResult)
    if name == "state":
        more["request_state"] = first.request_state
    async with world.gate() as gate, modern(gate) as client:
        call_tool = client.session.call_tool
        calling = asyncio.create_task(call_tool("pay", ARGS, **more))
        await world.decide(Approve())
        await calling
        another = asyncio.create_task(client.call_tool("pay", ARGS))
        await world.decide(Approve())
        await another
    assert await world.cards() == 2
    assert len(world.script.calls()) == 2


async def test_another_gates_call_answers_no_later_one(world: World) -> None:
    async with world.gate() as gate, modern(gate) as client:
        calling = asyncio.create_task(client.call_tool("pay", ARGS))
        await world.asked()
        async with world.gate() as other, modern(other) as its_client:
            await its_client.call_tool("look_up", {})
            assert any(other.calls.left_open.values())
            await world.decide(Approve())
            await calling
            another = asyncio.create_task(its_client.call_tool("pay", ARGS))
            await world.decide(Approve())
            await another
    assert [one["name"] for one in world.script.calls()].count("pay") == 2


async def test_equal_calls_of_two_live_gates_are_two(world: World) -> None:
    dan = Person(team="", user="U0DAN")
    async with world.gate(requester=dan) as gate, modern(gate) as client:
        calling = [asyncio.create_task(client.call_tool("pay", ARGS))]
        await world.asked()
        async with world.gate(requester=dan) as other, modern(other) as its_client:
            calling.append(asyncio.create_task(its_client.call_tool("pay", ARGS)))
            for item_id in await world.asked(2):
                await world.people.decide(item_id, Approve())
            results = await asyncio.gather(*calling)
    assert not any(one.is_error for one in results)
    assert len(world.script.calls()) == 2


async def test_a_gate_continues_an_abandoned_call(world: World) -> None:
    async with world.gate() as gate:
        async with modern(gate) as client:
            calling = asyncio.create_task(client.call_tool("pay", ARGS))
            [item_id] = await world.asked()
            calling.cancel()
        await eventually(partial(shows_gone, world, item_id))
        async with world.gate() as other, modern(other) as its_client:
            again = asyncio.create_task(its_client.call_tool("pay", ARGS))
            await world.decide(Approve())
            assert (await again).structured_content == {"paid": 5, "to": "ada"}
    assert await world.cards() == 1
    assert len(world.script.calls()) == 1


async def shows_gone(world: World, item_id: str) -> bool:
    """Return whether the card shows that the caller has gone."""
    await world.people.sweeper.sweep()
    return (await world.people.approval(item_id)).caller_gone


async def test_the_card_shows_a_caller_that_has_gone(world: World) -> None:
    async with world.gate() as gate:
        async with modern(gate) as client:
            with pytest.raises(MCPError):
                await client.session.call_tool("pay", ARGS, read_timeout_seconds=2)
            [item_id] = await world.asked()
            await eventually(partial(shows_gone, world, item_id))
        async with modern(gate) as client:
            calling = asyncio.create_task(client.call_tool("pay", ARGS))
            await eventually(partial(is_back, world, item_id))
            calling.cancel()
        await eventually(partial(shows_gone, world, item_id))
        async with modern(gate) as client:
            calling = asyncio.create_task(client.call_tool("pay", ARGS))
            await eventually(partial(is_back, world, item_id))
            # It ends in order, and the gate with its client.
            calling.cancel()
    await eventually(partial(shows_gone, world, item_id))


async def is_back(world: World, item_id: str) -> bool:
    """Return whether the card shows no longer that the caller has gone."""
    return not await shows_gone(world, item_id)


URL = "https://acme.slack.com/archives/C0APPROVALS/p1"


def link_cards(world: World) -> None:
    """Give each call a card in Slack before the gateway reads its address."""

    async def put(name: str) -> None:
        if name == "attend":
            cards, keys = world.people.store.cards, world.people.keys
            for item_id in await world.pending():
                approval, _ = approval_of(item_id)
                await cards.posted(keys, approval, channel="C0APPROVALS", ts="1")
                await cards.put_url(keys, approval, URL)

    world.seen.before = put


@pytest.mark.parametrize("reply", ["accept", "decline", "cancel"])
async def test_a_client_with_links_gets_one(world: World, reply: Any) -> None:
    shown = list[Any]()

    async def show(_ctx: object, params: Any) -> ElicitResult:
        shown.append(params)
        return ElicitResult(action=reply)

    link_cards(world)
    async with (
        world.gate(SHORT_S) as gate,
        modern(gate, elicitation_callback=show) as client,
    ):
        calling = asyncio.create_task(client.call_tool("pay", ARGS))
        await until(lambda: shown)
        count = world.seen.paths.count("attend")
        await until(lambda: world.seen.paths.count("attend") >= count + 2)
        await world.decide(Approve())
        result = await calling
    assert result.structured_content == {"paid": 5, "to": "ada"}
    [params] = shown
    assert (params.mode, params.url) == ("url", URL)
    assert await world.cards() == 1


@pytest.mark.parametrize("shows_links", [True, False])
async def test_a_link_needs_no_reply_and_a_client_that_shows_links(
    world: World, *, shows_links: bool
) -> None:
    async def show(*_: object) -> ElicitResult:
        raise AssertionError("The session gets the request, and this test ignores it.")

    link_cards(world)
    callback: Any = {"elicitation_callback": show} if shows_links else {}
    async with world.gate(SHORT_S) as gate, modern(gate, **callback) as client:
        first: Any = None
        while not (first and (first.input_requests or not shows_links)):
            first = await client.session.call_tool(
                *("pay", ARGS),
                request_state=first and first.request_state,
                allow_input_required=True,
            )
            assert isinstance(first, InputRequiredResult)
        assert bool(first.input_requests) is shows_links
        calling = asyncio.create_task(legs(client, first.request_state))
        await world.decide(Approve())
        assert (await calling).structured_content == {"paid": 5, "to": "ada"}


async def test_gates_of_two_people_share_no_calls(world: World) -> None:
    ana, ben = (Person(team="", user=user) for user in ("U0ANA", "U0BEN"))
    async with world.gate(SHORT_S, requester=ana) as gate, legacy(gate) as client:
        ticket = ticket_of(await client.call_tool("pay", ARGS))
    async with world.gate(SHORT_S, requester=ben) as gate, legacy(gate) as client:
        assert ticket_of(await client.call_tool("pay", ARGS)) != ticket
        refused = await client.call_tool("keyturn_wait", {"ticket": ticket})
        assert "no ticket of yours" in text_of(refused)


async def test_one_caller_cannot_fill_the_gate(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MOST_OF_A_CALLER", 1)
    who = ["ana"]

    def asking(_: object) -> Caller:
        return Caller(who[0])

    async with (
        world.gate(SHORT_S, caller=asking) as gate,
        legacy(gate) as client,
    ):
        ticket = ticket_of(await client.call_tool("pay", ARGS))
        refused = await client.call_tool("pay", {"to": "eve"})
        assert "calls of this client wait" in text_of(refused)
        assert ticket_of(await client.call_tool("pay", ARGS)) == ticket
        who[0] = "ben"
        ticket_of(await client.call_tool("pay", {"to": "eve"}))
