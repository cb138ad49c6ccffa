"""An Agent Server carries out each decision once, in every format of a question."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Approve, Edit, Reject, Respond
from keyturn.gateway.protocol.records import ItemState, Verb
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from tests.agent_server.bench import POLICY, Bench
from tests.conftest import eventually
from tests.service.harness import ANA, BEN

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("agent_server")]

REFUND = ["refund", {"order": "A1", "amount": 7.0}]
MAIL = ["send_mail", {"to": "ada", "text": "hello"}]
LOOK = ["look", {"order": "A1"}]
HANDED, REJECTED = ItemState.HANDED_OVER, ItemState.REJECTED


def paid(amount: float, order: str = "A1", user: str | None = None) -> dict[str, Any]:
    return {"kind": "refund", "user": user, "order": order, "amount": amount}


async def tool_texts(on: Bench, thread: str) -> list[str]:
    messages = (await on.server.values(thread))["messages"]
    return [one["content"] for one in messages if one["type"] == "tool"]


async def test_a_batch_is_answered_when_all_of_it_is_decided(on: Bench) -> None:
    other = ["refund", {"order": "B2", "amount": 8.0}]
    last = ["refund", {"order": "C3", "amount": 9.0}]
    thread = await on.asked("stock", [[REFUND, LOOK, other, last]])
    one, two, three = await on.items(thread)
    await on.people.decide(three.id, Edit(args={"order": "C3", "amount": 1.0}))
    await on.people.decide(one.id, Reject())
    await on.tick()
    assert on.server.done(thread) == []
    await on.people.decide(two.id, Approve())

    await on.tick(2)

    assert sorted(map(str, on.server.done(thread, "refund"))) == sorted(
        map(str, [paid(8.0, "B2"), paid(1.0, "C3")])
    )
    assert len(on.server.done(thread, "look")) == 1
    assert await on.states(thread) == [REJECTED, HANDED, HANDED]


async def test_people_are_offered_only_what_the_agent_takes(on: Bench) -> None:
    thread = await on.asked("stock", [[MAIL]])

    [item] = await on.items(thread)

    assert {*item.allow} == {Verb.APPROVE, Verb.REJECT}


def subagent(order: str, *call: Any) -> list[Any]:
    """Return the call of an agent that gives a call to a subagent, else a refund."""
    refund = ["refund", {"order": order, "amount": 7.0}]
    script = json.dumps([[call or refund]])
    return ["task", {"description": script, "subagent_type": "payer"}]


async def test_subagents_ask_apart_and_at_once(on: Bench) -> None:
    thread = await on.asked("deep", [[subagent("A1"), subagent("B2")]])
    first, second = await on.items(thread)
    assert first.is_pending
    assert second.is_pending
    args = {"order": first.args["order"], "amount": 5.0}
    await on.people.decide(first.id, Edit(args=args))
    await on.tick(2)
    assert on.server.done(thread) == [paid(5.0, str(first.args["order"]))]
    await on.people.decide(second.id, Approve())

    await on.tick(2)

    assert on.server.done(thread)[1:] == [paid(7.0, str(second.args["order"]))]
    assert await on.states(thread) == [HANDED, HANDED]
    assert await on.server.questions(thread) == []


def inbox(**allowed: bool) -> dict[str, Any]:
    config = {f"allow_{one}": False for one in ("accept", "edit", "respond", "ignore")}
    config |= {f"allow_{one}": it for one, it in allowed.items()}
    request = {"action": "refund", "args": {"order": "A1", "amount": 7.0}}
    return {"ask": {"action_request": request, "config": config, "description": "Pay."}}


DECIDED: list[tuple[Approve | Edit | Reject, list[float], str]] = [
    (Approve(), [7.0], "accept"),
    (Edit(args={"order": "A1", "amount": 5.0}), [5.0], "edit"),
    (Reject(reason="no"), [], "ignore"),
]


@pytest.mark.parametrize(("decision", "amounts", "word"), DECIDED)
async def test_an_agent_of_agent_inbox_is_decided(
    on: Bench, decision: Approve | Edit | Reject, amounts: list[float], word: str
) -> None:
    thread = await on.asked("inbox", inbox(accept=True, edit=True, ignore=True))
    await on.decide(thread, decision)

    await on.tick(2)

    assert on.server.done(thread) == [paid(one) for one in amounts]
    [said] = (await on.server.values(thread))["said"]
    assert said["type"] == word


@pytest.mark.parametrize(("decision", "amounts", "word"), DECIDED)
async def test_an_agent_in_javascript_is_decided(
    on: Bench, decision: Approve | Edit | Reject, amounts: list[float], word: str
) -> None:
    thread = await on.asked("camel", {"ask": {"order": "A1", "amount": 7.0}})
    await on.decide(thread, decision)

    await on.tick(2)

    assert on.server.done(thread) == [paid(one) for one in amounts]


async def test_a_plain_question_gets_the_words_of_a_person(on: Bench) -> None:
    thread = await on.asked("plain", {"ask": ["Which account?"]})
    await on.decide(thread, Respond(answers=("4711",)))

    await on.tick(2)

    assert (await on.server.values(thread))["said"] == ["4711"]


async def test_two_equal_questions_of_one_node_get_two_answers(on: Bench) -> None:
    thread = await on.asked("plain", {"ask": ["Sure?", "Sure?"]})
    await on.decide(thread, Respond(answers=("yes",)))
    await on.tick(3)
    assert len(await on.server.questions(thread)) == 1
    await on.decide(thread, Respond(answers=("no",)))

    await on.tick(2)

    assert (await on.server.values(thread))["said"] == ["yes", "no"]


async def test_agents_of_two_graphs_have_their_names(on: Bench) -> None:
    one = await on.asked("stock", [[REFUND]])
    two = await on.asked("camel", {"ask": {"order": "B2", "amount": 8.0}})

    assert [it.agent for it in await on.cards(one)] == ["a-stock"]
    assert [it.agent for it in await on.cards(two)] == ["a-camel"]
    assert [it.handed_to for it in await on.items(one)] == ["Agent Server crm"]


async def test_two_connectors_at_once_hand_each_decision_over_once(on: Bench) -> None:
    threads = await asyncio.gather(
        *(on.server.thread("stock", [[["refund", {"order": f"A{n}", "amount": 1.0}]]])
          for n in range(8))
    )  # fmt: skip
    await on.tick()
    for thread in threads:
        await on.decide(thread, Approve())
    both = on.loop, on.connector()

    async def are_handed() -> bool:
        await asyncio.gather(*(one.tick(looks_at_all=True) for one in both))
        await asyncio.gather(*(one.settled() for one in both))
        return all([await on.states(thread) == [HANDED] for thread in threads])

    await eventually(are_handed)
    for number, thread in enumerate(threads):
        assert on.server.done(thread) == [paid(1.0, f"A{number}")]
        assert await on.states(thread) == [HANDED]
        assert len(await on.server.runs(thread)) == 2


async def test_the_run_goes_on_as_the_user_for_whom_it_paused(on: Bench) -> None:
    config = {
        "configurable": {"user": "u7", "checkpoint_ns": ""},
        "recursion_limit": 33,
        "tags": ["mine"],
    }
    thread = await on.asked("stock", [[REFUND]], config=config)
    await on.decide(thread, Approve())

    await on.tick(2)

    assert on.server.done(thread) == [paid(7.0, user="u7")]
    newest = (await on.server.runs(thread))[0]["kwargs"]["config"]
    assert newest["recursion_limit"] == 33
    assert newest["tags"] == ["mine"]


async def test_an_older_checkpoints_run_goes_on_at_the_newest(on: Bench) -> None:
    thread = await on.server.thread("stock", [[REFUND]])
    older = (await on.server.ask("GET", f"/threads/{thread}/history?limit=10"))[-2]
    await on.server.run(
        thread, "stock", input=None, checkpoint_id=older["checkpoint_id"]
    )
    await on.tick()
    await on.decide(thread, Approve())

    await on.tick(2)

    assert on.server.done(thread) == [paid(7.0)]
    assert await on.states(thread) == [HANDED]


async def test_a_run_with_a_context_keeps_it(on: Bench) -> None:
    thread = await on.asked("stock", [[REFUND]], context={"user": "u8"})
    await on.decide(thread, Approve())

    await on.tick(2)

    assert await on.states(thread) == [HANDED]
    assert (await on.server.runs(thread))[0]["kwargs"]["context"] == {"user": "u8"}


@pytest.mark.parametrize(
    ("graph", "given"),
    [
        ("stock", [[REFUND]]),
        ("per_call", [[REFUND]]),
        ("inbox", inbox(accept=True, ignore=True)),
        ("camel", {"ask": {"order": "A1", "amount": 7.0}}),
        ("plain", {"ask": ["Which account?"]}),
    ],
)
async def test_silence_is_no_decision(on: Bench, graph: str, given: Any) -> None:
    thread = await on.asked(graph, given)
    [card] = await on.cards(thread)
    await on.people.overdue(card.id)
    await on.people.sweeper.sweep()

    await on.tick(3)

    assert on.server.done(thread, "refund") == []
    assert await on.states(thread) == [ItemState.EXPIRED]
    # A plain question has no word for it, so it stays open.
    is_open = bool(await on.server.questions(thread))
    assert is_open is (graph == "plain")
    assert len(await on.server.runs(thread)) == (1 if is_open else 2)


async def test_calls_that_ask_apart_are_answered_apart(on: Bench) -> None:
    """Their step goes on each time, and repeats none of them."""
    other = ["refund", {"order": "B2", "amount": 8.0}]
    thread = await on.asked("per_call", [[REFUND, other, LOOK]])
    first, second = await on.items(thread)
    await on.people.decide(first.id, Approve())
    await on.tick(2)
    assert on.server.done(thread, "refund") == [paid(7.0)]
    assert await on.states(thread) == [HANDED, ItemState.PENDING]
    await on.people.decide(second.id, Approve())

    await on.tick(2)

    assert on.server.done(thread, "refund") == [paid(7.0), paid(8.0, "B2")]
    assert len(on.server.done(thread, "look")) == 1
    assert await on.states(thread) == [HANDED, HANDED]


@pytest.mark.parametrize(
    ("tier", "amounts", "states"),
    [("auto", [7.0], []), ("notify", [7.0], [HANDED]), ("deny", [], [])],
)
async def test_the_policy_answers_calls_that_need_nobody(
    on: Bench, tier: str, amounts: list[float], states: list[ItemState]
) -> None:
    on.people.put_policy(of=f"{POLICY}  refund: {{tier: {tier}}}\n")
    thread = await on.asked("stock", [[REFUND]])

    await on.tick(2)

    assert on.server.done(thread) == [paid(one) for one in amounts]
    assert await on.states(thread) == states
    assert await on.server.questions(thread) == []


async def test_a_freeze_stops_an_approved_call(on: Bench) -> None:
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    refunds = FreezeScope(kind=ScopeKind.TOOL, name="refund")
    await on.people.reviews.freezes.freeze(refunds, "T0/U0BEN", "an incident")

    await on.tick(2)

    assert on.server.done(thread) == []
    [told] = await tool_texts(on, thread)
    assert "an incident" in told
    await on.tick()
    assert await on.states(thread) == [ItemState.WITHDRAWN]


async def test_a_stricter_policy_sends_an_approved_call_back(on: Bench) -> None:
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    two = "requirements: {two: {of: support, approvals: 2}}\n"
    stricter = f"{POLICY}  refund: {{tier: approve, needs: two}}\n{two}"
    on.people.put_policy(of=stricter)
    await on.tick(2)
    assert await on.states(thread) == [ItemState.PENDING]
    assert on.server.done(thread) == []
    [item] = await on.items(thread)
    await on.people.decide(item.id, Approve(), BEN)
    await on.people.decide(item.id, Approve(), ANA)

    await on.tick(2)

    assert on.server.done(thread) == [paid(7.0)]
    assert await on.states(thread) == [HANDED]
