"""Cut a process off for longer than leases, time limits and approvals live."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from keyturn.bot.ids import Action
from keyturn.cli.demo_stack import CHANNEL, REVIEWER
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import (
    Claimed,
    ClaimRequest,
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
)
from keyturn.gateway.store.events.readers import drop_reader, reader_states
from keyturn.sandbox.json_types import JsonObject
from tests.apart.agent_process import AGENT, TOOL
from tests.apart.between import Act, Fate
from tests.apart.house import LONG_S, POLICY, House, open_house
from tests.apart.test_kills import executed, said, states
from tests.conftest import eventually
from tests.levels import sample

pytestmark = pytest.mark.slow

LEASE_MS, ANSWER_S = 3000, 4
CUT_MS = 3 * LEASE_MS
SOON = "pay_soon"
TWO_TOOLS = {
    **POLICY,
    "tools": {
        TOOL: {"tier": "approve", "expires_in": "1h"},
        # Longer than a lease and than the wait for an answer, shorter than a cut.
        SOON: {"tier": "approve", "expires_in": "8s"},
    },
}
CUTS = {
    "store": ["bot-store"],
    "slack": ["bot-slack"],
    "both": ["bot-store", "bot-slack"],
}


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[House]:
    async with open_house(
        tmp_path, policy=TWO_TOOLS, lease_ms=LEASE_MS, answer_s=ANSWER_S
    ) as found:
        yield found


def turn(tool: str, thread: str) -> Turn:
    call = ProposedCall(tool_call_id="c1", tool=tool, args={"amount": 9})
    return Turn(ref=ref_of(thread), calls=(call,))


def ref_of(thread: str) -> TurnRef:
    return TurnRef(agent=AGENT, thread=thread, message_id="m1")


async def card(house: House, thread: str) -> JsonObject | None:
    """Return the current card of a thread's call in Slack.

    It is the one with valid buttons. If Slack gets a post so late that it was sent
    again in between, there is a second message, whose buttons are refused.
    """
    [approval] = await house.approvals(thread)
    keys = house.store.keys_of_tenant("default")
    place = await house.store.cards.place(keys, approval.id)
    if place is None:
        return None
    found = await house.sandbox.person(REVIEWER).messages(CHANNEL)
    [shown] = [one for one in found if one["ts"] == place.ts]
    return shown


async def shows(house: House, thread: str, words: str) -> None:
    """Wait until the one card of a thread has some words."""

    async def is_shown() -> bool:
        found = await card(house, thread)
        return found is not None and words in json.dumps(found["blocks"])

    try:
        await eventually(is_shown, within_s=LONG_S)
    except TimeoutError:
        raise AssertionError((thread, words, await card(house, thread))) from None


async def ends(house: House, thread: str, state: ItemState) -> None:
    async def has_ended() -> bool:
        return await states(house, thread) == [state]

    await eventually(has_ended, within_s=LONG_S)


async def lose_events(house: House) -> None:
    """Trim what the bot has not read, as the store does when it is away for long."""
    conn, keys = house.store.conn, house.store.keys_of_tenant("default")
    names = [one.name for one in await reader_states(conn, keys)]
    [bots] = [one for one in names if one.startswith("slack")]
    await drop_reader(conn, keys, bots)
    await conn.command("XTRIM", keys.outbox, "MAXLEN", "0")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("whose", sample(CUTS, 1))
async def test_a_bot_that_was_cut_off_for_long_shows_everything_as_it_is_now(
    house: House, whose: str
) -> None:
    gateway = HttpGateway(house.between.url, house.key)
    verdicts: dict[str, Verdict] = {}
    for thread, tool in (("kept", TOOL), ("withdrawn", TOOL), ("expired", SOON)):
        [verdicts[thread]] = await gateway.submit(turn(tool, thread))
    for thread in verdicts:
        await shows(house, thread, f'"{Action.APPROVE}"')

    for name in CUTS[whose]:
        house.cuts[name].close()
    await gateway.supersede(ref_of("withdrawn"))
    for thread, tool in (("new", TOOL), ("gone", SOON)):
        [verdicts[thread]] = await gateway.submit(turn(tool, thread))
    agent = await house.start_agent("agent")
    for thread in ("expired", "gone"):
        await ends(house, thread, ItemState.EXPIRED)
    if whose != "slack":
        await lose_events(house)
    for name in CUTS[whose]:
        house.cuts[name].open()

    async with house.people("agent"):
        assert await agent.ended() == 0, said(house, "agent")
        await executed(house, "agent")
    for thread in ("kept", "new"):
        await shows(house, thread, f'"{Action.APPROVE}"')
        async with house.people(thread):
            await ends(house, thread, ItemState.AUTHORIZED)
        reply = await gateway.claim(claim_of(verdicts[thread], thread))
        assert isinstance(reply, Claimed)
    await shows(house, "expired", "*Expired*")
    await shows(house, "withdrawn", "Nothing ran")
    for thread in ("withdrawn", "expired", "gone"):
        found = await card(house, thread)
        assert f'"{Action.APPROVE}"' not in json.dumps(found)
    await gateway.aclose()


def claim_of(verdict: Verdict, thread: str) -> ClaimRequest:
    return ClaimRequest(
        ref=ref_of(thread),
        item_id=verdict.item_id,
        tool=verdict.tool,
        tool_call_id=verdict.tool_call_id,
        owner="w",
    )


@pytest.mark.timeout(900)
async def test_what_is_decided_while_the_gateway_is_cut_off_for_long_runs_once(
    house: House,
) -> None:
    cut = house.cuts["gateway-store"]
    gateway = HttpGateway(house.between.url, house.key)
    await gateway.submit(turn(SOON, "expired"))
    await shows(house, "expired", f'"{Action.APPROVE}"')
    for thread, stage in sample(
        (("running", "running"), ("decided", "answers sent")), 1
    ):

        async def act() -> Fate:
            cut.close()
            return Fate.PASSED

        house.between.acts[thread, stage] = act
        async with house.people(thread):
            agent = await house.start_agent(thread)

            async def is_cut(thread: str = thread) -> bool:
                # Decided by then, too: the bot goes on.
                found = await states(house, thread)
                return not house.between.acts and ItemState.PENDING not in found

            await eventually(is_cut, within_s=LONG_S)
            await is_later(house, by_ms=CUT_MS)
            cut.open()
            assert await agent.ended() == 0, said(house, thread)
            await executed(house, thread)
    await ends(house, "expired", ItemState.EXPIRED)
    await shows(house, "expired", "*Expired*")
    await gateway.aclose()


async def is_later(house: House, *, by_ms: int) -> None:
    """Wait until the store's clock is on by so much."""
    now_ms = house.store.conn.now_ms
    until_ms = await now_ms("") + by_ms

    async def has_come() -> bool:
        return await now_ms("") >= until_ms

    await eventually(has_come, within_s=LONG_S)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "stage", sample(["running", "submit answered", "answers sent"], 1)
)
async def test_an_agent_that_was_cut_off_past_its_lease_runs_its_call_once(
    house: House, stage: str
) -> None:
    thread, cut = stage.replace(" ", "-"), house.cuts["agent-gateway"]
    house.between.acts[thread, stage] = closes(house)
    async with house.people(thread):
        agent = await house.start_agent(thread)

        async def is_decided() -> bool:
            found = await states(house, thread)
            return bool(found) and ItemState.PENDING not in found

        await eventually(is_decided, within_s=LONG_S)
        await is_later(house, by_ms=CUT_MS)
        if stage == "running":
            await ends(house, thread, ItemState.IN_DOUBT)
        cut.open()
        assert await agent.ended() == 0, said(house, thread)
        await executed(house, thread)
    assert not house.between.acts


@pytest.mark.timeout(900)
async def test_a_claim_whose_answer_is_late_past_its_lease_runs_nothing(
    house: House,
) -> None:
    thread = "late"
    house.between.acts[thread, "claim answered"] = closes(house)
    async with house.people(thread):
        agent = await house.start_agent(thread)
        await ends(house, thread, ItemState.IN_DOUBT)
        await is_later(house, by_ms=CUT_MS)
        house.cuts["agent-gateway"].open()

        async def has_asked_again() -> bool:
            return house.between.met.count((thread, "claim answered")) > 1

        await eventually(has_asked_again, within_s=LONG_S)
        # People are asked to reconcile the call; nobody does so here.
        await shows(house, thread, "know whether this ran")
    assert thread not in house.between.effects
    await agent.kill()


def closes(house: House) -> Act:
    async def act() -> Fate:
        house.cuts["agent-gateway"].close()
        return Fate.PASSED

    return act
