"""Others answer, threads disappear, connectors die: one effect, and a true record."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from keyturn.connect import hand_over
from keyturn.connect.agent_server import AgentServer, HostUnavailable
from keyturn.connect.hand_over import Connector
from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Approve, Decision, Edit, Reject
from keyturn.gateway.approvals.lifecycle import FINAL
from keyturn.gateway.clock import now_s
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.hand_over import Delivery
from tests.agent_server.bench import Bench
from tests.agent_server.mortal import Death, Meddled, Mortal
from tests.agent_server.test_decisions import LOOK, REFUND, inbox, paid, subagent
from tests.levels import sample
from tests.patience import LEASE_MS
from tests.service.harness import ANA

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("agent_server")]

HANDED, NOT_TAKEN = ItemState.HANDED_OVER, ItemState.NOT_TAKEN
NEXT = ["refund", {"order": "B2", "amount": 8.0}]
PENDING, WITHDRAWN = ItemState.PENDING, ItemState.WITHDRAWN


async def resume(on: Bench, thread: str, value: Any, graph: str = "stock") -> None:
    """Answer the question of a thread as another program would."""
    [one] = await on.server.questions(thread)
    await on.server.run(thread, graph, command={"resume": {one["id"]: value}})


async def problem(on: Bench, thread: str) -> str:
    [item] = await on.items(thread)
    return item.handed.problem


async def test_a_question_that_was_answered_elsewhere_is_withdrawn(on: Bench) -> None:
    thread = await on.asked("stock", [[REFUND]])
    await resume(on, thread, {"decisions": [{"type": "reject"}]})

    await on.tick(2)

    assert await on.states(thread) == [WITHDRAWN]
    assert on.server.done(thread) == []


async def test_a_decision_too_late_is_not_taken(on: Bench) -> None:
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    await resume(on, thread, {"decisions": [{"type": "reject"}]})

    await on.tick(2)

    assert await on.states(thread) == [NOT_TAKEN]
    assert await problem(on, thread) == "answered_elsewhere"
    assert on.server.done(thread) == []


@pytest.mark.parametrize("then", [[], [NEXT]])
async def test_a_concurrent_answer_is_seen(on: Bench, then: list[Any]) -> None:
    """The server ignores ours; its run ends well if the agent asks something else."""
    thread = await on.asked("stock", [[REFUND], then])
    await on.decide(thread, Approve())

    async def meddle() -> None:
        await resume(on, thread, {"decisions": [{"type": "reject"}]})

    on.loop = on.connector(Meddled(on.host, "send", meddle))
    await on.tick()
    await on.server.ended(thread)
    await on.tick()

    first, *others = await on.items(thread)
    assert first.state is NOT_TAKEN
    assert first.handed.problem == "answered_elsewhere"
    assert [it.state for it in others] == [PENDING] * len(then)
    assert on.server.done(thread) == []


async def test_an_answer_in_between_to_one_of_two_questions_is_seen(on: Bench) -> None:
    """The checkpoint is the same before and after, and so is the question's form."""
    thread = await on.asked("deep", [[subagent("A1"), subagent("B2")]])
    first, _ = await on.items(thread)
    await on.people.decide(first.id, Approve())
    [one] = [
        it
        for it in await on.server.questions(thread)
        if it["value"]["action_requests"][0]["args"] == first.args
    ]

    async def meddle() -> None:
        value = {"decisions": [{"type": "reject"}]}
        await on.server.run(thread, "deep", command={"resume": {one["id"]: value}})

    on.loop = on.connector(Meddled(on.host, "send", meddle))
    await on.tick(2)

    assert await on.states(thread) == [NOT_TAKEN, PENDING]
    assert on.server.done(thread) == []


async def test_a_new_message_withdraws_the_question(on: Bench) -> None:
    thread = await on.asked("stock", [[REFUND]])
    message = {"messages": [{"role": "user", "content": "[[]]"}]}
    await on.server.run(thread, "stock", input=message)

    await on.tick(2)

    assert await on.states(thread) == [WITHDRAWN]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_deleted_thread_is_withdrawn(on: Bench, *, is_known: bool) -> None:
    thread = await on.asked("stock", [[REFUND]])
    await on.server.forget()
    if not is_known:
        on.loop = on.connector()

    await on.tick(2)

    assert await on.states(thread) == [WITHDRAWN]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_late_deletion_is_not_taken(on: Bench, *, is_known: bool) -> None:
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    await on.server.forget()
    if not is_known:
        on.loop = on.connector()

    await on.tick(2)

    assert await on.states(thread) == [NOT_TAKEN]
    assert await problem(on, thread) == "deleted"


async def test_a_run_that_waits_in_the_queue_leaves_the_card(on: Bench) -> None:
    thread = await on.asked("stock", [[REFUND]])
    later = await on.server.begin(thread, "stock", input=None, after_seconds=3600)
    await on.tick(3)
    assert await on.states(thread) == [PENDING]
    await on.decide(thread, Approve())
    await on.tick(2)
    # The server refuses a second run; nothing is lost.
    assert await on.states(thread) == [ItemState.AUTHORIZED]
    run = later["run_id"]
    await on.server.ask("POST", f"/threads/{thread}/runs/{run}/cancel?wait=true")

    await on.tick(3)

    assert on.server.done(thread) == [paid(7.0)]
    assert await on.states(thread) == [HANDED]


async def test_a_bricked_thread_is_told_once(on: Bench) -> None:
    """Another program gave no decision at all: such a thread takes no answer."""
    thread = await on.asked("stock", [[REFUND]])
    await resume(on, thread, {"decisions": []})
    await on.decide(thread, Approve())

    await on.tick(5)

    assert await on.states(thread) == [NOT_TAKEN]
    [item] = await on.items(thread)
    assert item.handed.problem == "refused"
    assert "Number of human decisions (0)" in item.handed.detail
    # The first one, the other program's, and one of ours.
    assert len(await on.server.runs(thread)) == 3
    assert on.server.done(thread) == []


async def test_a_question_found_in_a_thread_with_an_error_is_asked(on: Bench) -> None:
    thread = await on.server.thread("stock", [[REFUND]])
    await resume(on, thread, {"decisions": []})

    await on.tick()

    assert await on.states(thread) == [PENDING]


Give = Callable[[], Decision]
ENDS: list[tuple[Give, float | None]] = [
    (Approve, 7.0),
    (lambda: Edit(args={"order": "A1", "amount": 5.0}), 5.0),
    (Reject, None),
]
"""Decisions, and the amount that each lets an agent pay."""

GIVEN: dict[str, Any] = {
    "stock": [[REFUND]],
    "per_call": [[REFUND]],
    "inbox": inbox(accept=True, edit=True, ignore=True),
    "camel": {"ask": {"order": "A1", "amount": 7.0}},
}


def mortal(on: Bench, of: AgentServer, death: Death) -> Connector:
    """Return a connector that dies."""
    host: Any = Mortal(of, death)
    gate: Any = Mortal(on.gate, death)
    return Connector(host, gate, every_s=0.01)


@pytest.mark.parametrize("seed", sample(range(200), 6))
async def test_a_dead_connectors_decision_arrives_once(on: Bench, seed: int) -> None:
    """Each lives for some requests; the next one goes on after the leases ended."""
    chance = random.Random(seed)  # noqa: S311 - of a test
    graph = chance.choice(sorted(GIVEN))
    decision, amount = chance.choice(ENDS)
    thread = await on.server.thread(graph, GIVEN[graph])
    host, deaths = on.host_of(graph), 0

    while await on.server.questions(thread) or not {*await on.states(thread)} <= FINAL:
        death = Death(chance.randrange(50 if deaths < 10 else 1000))
        dying = mortal(on, host, death)
        with suppress(asyncio.CancelledError):
            await dying.tick(looks_at_all=True)
        await dying.settled()
        deaths += death.has_come
        for item in await on.items(thread):
            if item.is_pending:
                await on.people.decide(item.id, decision())
            if item.state is ItemState.HANDING_OVER:
                await on.people.owner_dies(item.id)
    await on.tick(2)

    assert [one["amount"] for one in on.server.done(thread)] == [
        one for one in [amount] if one
    ]
    assert await on.states(thread) == [HANDED if amount else ItemState.REJECTED]
    assert len(await on.server.runs(thread)) == 2
    assert await on.server.questions(thread) == []


async def wants_again(on: Bench, thread: str) -> None:
    """Press *Ask again* on the card of a thread."""
    [card] = await on.cards(thread)
    changed = await on.people.reviews.change_own(
        card.id, waiting_changes.ask_again, 0, ANA
    )
    assert isinstance(changed, Change), changed


async def test_a_bricked_thread_asks_again_and_pays_once(on: Bench) -> None:
    thread = await on.asked("stock", [[REFUND]])
    await resume(on, thread, {"decisions": []})
    await on.decide(thread, Approve())
    await on.tick(2)
    models = len((await on.server.values(thread))["messages"])
    await wants_again(on, thread)

    await on.tick()
    await on.server.ended(thread)
    await on.tick()

    first, second = await on.items(thread)
    assert (first.state, second.state) == (NOT_TAKEN, PENDING)
    assert first.handed.asked_again_ms
    assert len((await on.server.values(thread))["messages"]) == models
    await on.decide(thread, Approve())
    await on.tick(3)
    assert on.server.done(thread) == [paid(7.0)]
    assert await on.states(thread) == [NOT_TAKEN, HANDED]


FAIL: list[Any] = ["fail", {"order": "A1"}]


@pytest.mark.parametrize(
    ("graph", "call"), [("failing", FAIL), ("deep", subagent("", *FAIL))]
)
async def test_a_failed_tool_is_not_run_again(on: Bench, graph: str, call: Any) -> None:
    """It had begun. To ask again would repeat its step, so that is refused."""
    thread = await on.asked(graph, [[call]])
    await on.decide(thread, Approve())

    await on.tick(4)

    assert len(on.server.done(thread, "fail")) == 1
    [item] = await on.items(thread)
    assert item.handed.problem == "failed"
    assert "the printer is on fire" in item.handed.detail
    runs = len(await on.server.runs(thread))
    await wants_again(on, thread)
    await on.tick(2)
    [item] = await on.items(thread)
    assert "Send the agent a message instead" in item.handed.again_detail
    assert len(await on.server.runs(thread)) == runs
    assert len(on.server.done(thread, "fail")) == 1


async def test_a_thread_that_is_gone_cannot_ask_again(on: Bench) -> None:
    thread = await on.asked("stock", [[REFUND]])
    await resume(on, thread, {"decisions": []})
    await on.decide(thread, Approve())
    await on.tick(2)
    await on.server.forget()
    await wants_again(on, thread)

    await on.tick(2)

    [item] = await on.items(thread)
    assert item.handed.again_detail == "The conversation was deleted."
    assert not item.is_to_be_asked_again


class Broken:
    """A host that cannot read one thread, such as one with too large a state."""

    def __init__(self, of: Any, thread: str) -> None:
        self._of, self._thread = of, thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    async def read(self, thread: str) -> Any:
        if thread == self._thread:
            raise HostUnavailable("the answer is too long")
        return await self._of.read(thread)


async def test_a_thread_that_cannot_ask_again_stops_no_other(on: Bench) -> None:
    broken = await on.asked("stock", [[REFUND]])
    await resume(on, broken, {"decisions": []})
    await on.decide(broken, Approve())
    await on.tick(2)
    other = await on.asked("stock", [[REFUND]])
    await on.decide(other, Approve())
    await wants_again(on, broken)
    on.loop = on.connector(Broken(on.host, broken))

    await on.tick(2)

    assert await on.states(other) == [HANDED]
    [item] = await on.items(broken)
    assert item.is_to_be_asked_again


async def test_a_thread_deleted_with_its_answer_may_have_run(on: Bench) -> None:
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    on.loop = on.connector(Meddled(on.host, "ending", on.server.forget))

    await on.tick()

    assert await on.states(thread) == [NOT_TAKEN]
    assert await problem(on, thread) == "failed"


async def test_a_run_of_many_steps_is_found_to_have_answered(on: Bench) -> None:
    """Its checkpoints are on several pages when a connector looks."""
    thread = await on.asked("stock", [[REFUND], *[[LOOK]] * 9])
    await on.decide(thread, Approve())
    ended = partial(on.server.ended, thread)
    on.loop = on.connector(Meddled(on.host, "ending", ended))

    await on.tick()

    assert len(on.server.done(thread, "look")) == 9
    assert await on.states(thread) == [HANDED]


async def test_no_argument_and_no_error_of_a_tool_reaches_a_log(
    on: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    failed = await on.asked("failing", [[["fail", {"order": "order-78291"}]]])
    await on.decide(failed, Approve(reason="words-of-a-person"))
    silent = await on.asked("plain", {"ask": [{"question": "order-78291?"}]})
    [card] = await on.cards(silent)
    await on.people.overdue(card.id)
    await on.people.sweeper.sweep()

    await on.tick(3)

    assert "answer.failed" in caplog.text
    assert "question.unanswered" in caplog.text
    for secret in ("order-78291", "words-of-a-person", "on fire"):
        assert secret not in caplog.text


async def test_a_decision_that_the_question_cannot_take_is_told(
    on: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    # As for a question whose schema fits no approval.
    monkeypatch.setattr(Delivery, "is_written", Mock(return_value=False))

    await on.tick()

    assert await on.states(thread) == [NOT_TAKEN]
    assert await problem(on, thread) == "refused"
    assert on.server.done(thread, "refund") == []


class Unconfirmed:
    """A host that once does not confirm an answer; it may have arrived."""

    def __init__(self, of: Any, *, arrives: bool) -> None:
        self._of, self._arrives, self._is_done = of, arrives, False
        self.late: Any = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if name != "send" or self._is_done:
            return found

        async def sent(*given: Any) -> Any:
            self._is_done, self.late = True, partial(found, *given)
            if self._arrives:
                await self.late()
            raise HostUnavailable("the connection broke")

        return sent


@pytest.mark.parametrize("arrives", [True, False])
async def test_an_unconfirmed_answer_is_looked_up(on: Bench, *, arrives: bool) -> None:
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    on.loop = on.connector(Unconfirmed(on.host, arrives=arrives))

    await on.tick(3)

    assert on.server.done(thread) == [paid(7.0)]
    assert await on.states(thread) == [HANDED]
    assert len(await on.server.runs(thread)) == 2


async def test_an_answer_that_arrives_late_is_taken(on: Bench) -> None:
    """Its claim was given back, because the server did not show it in time."""
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    slow = Unconfirmed(on.host, arrives=False)
    on.loop = on.connector(slow)
    await on.tick()
    assert await on.states(thread) == [ItemState.AUTHORIZED]
    await slow.late()
    await on.server.ended(thread)

    await on.tick()

    assert on.server.done(thread) == [paid(7.0)]
    assert await on.states(thread) == [HANDED]
    assert len(await on.server.runs(thread)) == 2


async def test_an_answer_that_arrives_right_before_its_repetition_is_taken(
    on: Bench,
) -> None:
    """The server ignores the second one."""
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    slow = Unconfirmed(on.host, arrives=False)
    on.loop = on.connector(slow)
    await on.tick()

    async def arrive() -> None:
        await slow.late()
        await on.server.ended(thread)

    on.loop = on.connector(Meddled(on.host, "send", arrive))
    await on.tick()

    assert on.server.done(thread) == [paid(7.0)]
    assert await on.states(thread) == [HANDED]
    assert len(await on.server.runs(thread)) == 3


@pytest.mark.parametrize(
    ("leases", "state"), [(0.6, HANDED), (1.1, ItemState.AUTHORIZED)]
)
async def test_an_answer_is_sent_to_a_slow_server(
    on: Bench, monkeypatch: pytest.MonkeyPatch, leases: float, state: ItemState
) -> None:
    """Unless another process may have sent it in the meantime."""
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    late_s = 0.0
    monkeypatch.setattr(hand_over, "now_s", lambda: now_s() + late_s)

    async def take_long() -> None:
        nonlocal late_s
        late_s = leases * LEASE_MS / 1000

    on.loop = on.connector(Meddled(on.host, "runs", take_long))
    await on.tick()

    assert await on.states(thread) == [state]


async def test_a_connector_that_lost_its_claims_sends_nothing(
    on: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one took over while the process was suspended."""
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    [item] = await on.items(thread)
    other = on.connector()

    async def take_over() -> None:
        await on.people.owner_dies(item.id)
        await other.tick(looks_at_all=True)
        await other.settled()

    gate: Any = Meddled(on.gate, "heartbeat", take_over)
    on.loop = Connector(on.host, gate, every_s=0.05)
    await on.tick()

    assert "answer.late" in caplog.text
    assert on.server.done(thread) == [paid(7.0)]
    assert await on.states(thread) == [HANDED]
    assert len(await on.server.runs(thread)) == 2
