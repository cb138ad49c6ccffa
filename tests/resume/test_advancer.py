"""Advance a thread by the state that its runner reports, and announce its end once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from langchain.agents.middleware.model_call_limit import ModelCallLimitExceededError
from langchain.agents.middleware.tool_call_limit import ToolCallLimitExceededError
from langgraph.errors import GraphRecursionError
from pydantic import JsonValue

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.wire import APPROVAL_INTERRUPT, Verdict
from keyturn.gateway.resume.advancer import MAX_STALE, Advancer, ThreadStuck
from keyturn.gateway.resume.diagnosis import AtBreakpoint, ThreadHalted
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.store_threads import (
    MAX_CHARS,
    StoreThreads,
    announce_end,
    under_lease,
)
from keyturn.gateway.resume.threads import (
    AnswerRefused,
    ThreadState,
)
from keyturn.gateway.store.keys import KEEP_MS, keys_of_tenant
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.store import Store
from tests.resume.resume_stack import Stack
from tests.service.harness import DAN, ServiceHarness
from tests.streams import announced, audit_entries

KEYS = keys_of_tenant("default")

FINISHED = ThreadState(exists=True, checkpoint="c1", final_message="done")
CUT_OFF = ThreadState(exists=True, has_tasks=True, is_cut_off=True, checkpoint="c0")


@dataclass
class Scripted(Runner):
    """A runner with the states that the test sets; it records the requests."""

    state: ThreadState
    react: Callable[[Scripted], None] = lambda _: None
    asked: list[str] = field(default_factory=list[str])

    async def probe(self, thread: str) -> ThreadState:
        """Return the state of the thread."""
        return self.state

    async def has_taken(self, thread: str, key: str) -> bool:
        """Return whether the thread was last started with this key."""
        return self.state.taken == key

    async def follows_answer(self, thread: str) -> bool:
        """Return False: no answer led to the state of the thread."""
        return False

    async def start(self, thread: str, text: str, *, key: str) -> None:
        """Note a start."""
        self._note("start")

    async def resume(
        self,
        thread: str,
        answers: Mapping[str, JsonValue],
        *,
        key: str,
        names: Collection[str] = (),
    ) -> None:
        """Note the answers."""
        self._note(f"resume {len(answers)}")

    async def nudge(self, thread: str, *, key: str) -> None:
        """Note a nudge."""
        self._note("nudge")

    def _note(self, what: str) -> None:
        self.asked.append(what)
        self.react(self)


@pytest.fixture
def at() -> RunRef:
    """Give the thread of the tests."""
    return RunRef(agent="support", thread="t1")


@pytest.fixture
def advancer(harness: ServiceHarness) -> Advancer:
    """Give an advancer."""
    return Advancer(StoreThreads(harness.store, harness.agents))


def asking(verdicts: Sequence[Verdict]) -> ThreadState:
    """Return a thread that asks about these held calls."""
    pending = [
        Question(
            f"{index:032x}",
            {
                "type": APPROVAL_INTERRUPT,
                "item_id": one.item_id,
                "action_hash": one.action_hash,
            },
        )
        for index, one in enumerate(verdicts)
    ]
    return ThreadState(exists=True, pending=tuple(pending), has_tasks=True)


async def test_a_missing_thread_is_not_resumed(advancer: Advancer, at: RunRef) -> None:
    runner = Scripted(ThreadState(exists=False))

    await advancer.forward(at, runner)

    assert runner.asked == []


async def test_a_silent_stop_is_not_nudged(advancer: Advancer, at: RunRef) -> None:
    runner = Scripted(CUT_OFF)

    with pytest.raises(AtBreakpoint, match="stands at a breakpoint"):
        await advancer.forward(at, runner)
    for past_limits in (False, True):
        with pytest.raises(AtBreakpoint):
            await advancer.forward(at, runner, past_limits=past_limits)

    assert runner.asked == ["nudge"]


@pytest.mark.parametrize(
    "error",
    [
        GraphRecursionError("25 steps"),
        ModelCallLimitExceededError(1, 1, 1, 1),
        ToolCallLimitExceededError(1, 1, 1, 1),
    ],
)
async def test_a_limit_is_tried_again_only_by_its_program(
    advancer: Advancer, at: RunRef, error: Exception
) -> None:
    def fail(runner: Scripted) -> None:
        raise error

    runner = Scripted(CUT_OFF, react=fail)

    for past_limits in (False, True):
        with pytest.raises(type(error)):
            await advancer.forward(at, runner, past_limits=past_limits)
        with pytest.raises(ThreadHalted, match=type(error).__name__):
            await advancer.forward(at, runner)

    assert runner.asked == ["nudge"] * 2


async def test_an_answer_that_comes_back_as_a_question_is_not_sent_twice(
    harness: ServiceHarness, advancer: Advancer, at: RunRef
) -> None:
    _, verdicts = await harness.submit(("process_refund", {"amount": 1}))
    await harness.decide(verdicts[0], Approve())
    runner = Scripted(asking(verdicts))

    with pytest.raises(ThreadStuck, match="does not take the answer"):
        await advancer.forward(at, runner)

    assert runner.asked == ["resume 1"]


@pytest.mark.parametrize(("is_stale", "times"), [(True, MAX_STALE + 1), (False, 1)])
async def test_a_refused_answer_is_read_again_before_it_is_given_up(
    harness: ServiceHarness,
    advancer: Advancer,
    at: RunRef,
    *,
    is_stale: bool,
    times: int,
) -> None:
    _, verdicts = await harness.submit(("process_refund", {"amount": 1}))
    await harness.decide(verdicts[0], Approve())

    def refuse(_: Scripted) -> None:
        raise AnswerRefused("no", is_stale=is_stale)

    runner = Scripted(asking(verdicts), react=refuse)

    with pytest.raises(ThreadStuck):
        await advancer.forward(at, runner)

    assert runner.asked == ["resume 1"] * times


async def test_an_item_that_the_agent_dropped_is_withdrawn(
    harness: ServiceHarness, advancer: Advancer, at: RunRef
) -> None:
    _, verdicts = await harness.submit(
        ("process_refund", {"amount": 1}), ("process_refund", {"amount": 2})
    )

    await advancer.forward(at, Scripted(asking(verdicts[:1])))

    states = [(await harness.item(one.item_id)).state for one in verdicts]
    assert states == [ItemState.PENDING, ItemState.WITHDRAWN]


async def test_an_authorization_that_a_finished_thread_never_used_is_withdrawn(
    harness: ServiceHarness, advancer: Advancer, at: RunRef
) -> None:
    _, verdicts = await harness.submit(("process_refund", {"amount": 1}))
    await harness.decide(verdicts[0], Approve())

    await advancer.forward(at, Scripted(FINISHED))

    assert (await harness.item(verdicts[0].item_id)).state is ItemState.WITHDRAWN


async def test_a_new_message_supersedes_even_where_the_middleware_is_missing(
    harness: ServiceHarness, advancer: Advancer, at: RunRef
) -> None:
    _, verdicts = await harness.submit(("process_refund", {"amount": 1}))

    def finish(runner: Scripted) -> None:
        runner.state = FINISHED

    runner = Scripted(asking(verdicts), react=finish)
    await advancer.begin(at, runner, lambda: runner.start("t1", "hi", key="k"), key="k")

    assert (await harness.item(verdicts[0].item_id)).state is ItemState.SUPERSEDED


@pytest.mark.parametrize("is_broken", [False, True])
async def test_a_stuck_thread_still_takes_a_new_message(
    advancer: Advancer, at: RunRef, *, is_broken: bool
) -> None:
    def finish(runner: Scripted) -> None:
        if runner.asked[-1] == "start":
            runner.state = FINISHED
        elif is_broken:
            raise RuntimeError("the model is down")

    runner = Scripted(CUT_OFF, react=finish)
    await advancer.begin(at, runner, lambda: runner.start("t1", "hi", key="k"), key="k")

    assert runner.asked == ["nudge", "start"]


async def test_last_words_are_posted_once_and_whole(store: Store, at: RunRef) -> None:
    assert await announce_end(store, KEYS, at, "c1", "x" * (MAX_CHARS + 5))
    assert not await announce_end(store, KEYS, at, "c1", "again")
    assert await announce_end(store, KEYS, at, "c2", "more")

    first, second = await announced(store.conn, KEYS)
    assert len(first.data["text"]) == MAX_CHARS
    assert first.data["text"].endswith("more characters)")
    assert second.data["text"] == "more"
    kept = await audit_entries(store.conn, KEYS)
    assert ["text" in one.data for one in kept] == [False, False]


async def test_a_thread_that_asks_something_else_now_gets_no_answer_read_before(
    harness: ServiceHarness, advancer: Advancer, at: RunRef
) -> None:
    _, [old] = await harness.submit(("process_refund", {"amount": 7}))
    runner = Scripted(asking([old]))
    await advancer.forward(at, runner)
    await harness.decide(old, Approve())
    # Another process brought it forward.
    _, [new] = await harness.submit(("process_refund", {"amount": 8}))
    runner.state = asking([new])

    await advancer.forward(at, runner)

    assert runner.asked == []


async def test_a_thread_goes_on_without_a_record_that_is_damaged_while_it_waits(
    harness: ServiceHarness, advancer: Advancer, at: RunRef
) -> None:
    def answered(one: Scripted) -> None:
        one.state = FINISHED

    _, [verdict] = await harness.submit(("process_refund", {"amount": 7}))
    runner = Scripted(asking([verdict]), answered)
    await advancer.forward(at, runner)
    approval, _ = approval_of(verdict.item_id)
    await harness.store.conn.command("SET", KEYS.document(approval), "{}")

    state = await advancer.forward(at, runner)

    assert (state, runner.asked) == (FINISHED, ["resume 1"])


async def test_a_lost_lease_ends_no_later_run(stack: Stack, at: RunRef) -> None:
    async def late() -> None:
        await stack.store.conn.command("DEL", KEYS.lease(at.agent, at.thread))
        await under_lease(stack.store, KEYS, at, newer)
        await announce_end(stack.store, KEYS, at, "c1", "old words")

    async def newer() -> None:
        await announce_end(stack.store, KEYS, at, "c2", "new words")

    with pytest.raises(LeaseLost):
        await under_lease(stack.store, KEYS, at, late)
    [event] = await stack.events(EventName.RUN_FINISHED)
    assert event.data["text"] == "new words"


async def test_a_run_that_begins_right_after_the_end_was_told_keeps_its_people(
    stack: Stack, at: RunRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = stack.store.threads
    where = (KEYS, at.agent, at.thread)
    await threads.change(*where, lambda _: ThreadFacts(requester=DAN), why="aside")
    announce = threads.announce

    async def then_another_begins(*args: Any, **named: Any) -> bool:
        is_new = await announce(*args, **named)
        await threads.open_run(*where, has_past=False)
        return is_new

    monkeypatch.setattr(threads, "announce", then_another_begins)
    await announce_end(stack.store, KEYS, at, "c1", "done")

    facts = KEYS.thread_facts(at.agent, at.thread)
    assert await stack.store.conn.command("PTTL", facts) == -1, "it is kept for the run"


async def test_an_ended_run_keeps_its_people_a_while(stack: Stack, at: RunRef) -> None:
    threads = stack.store.threads
    where = (KEYS, at.agent, at.thread)
    await threads.open_run(*where, has_past=False)

    await announce_end(stack.store, KEYS, at, "c1", "done")

    facts = KEYS.thread_facts(at.agent, at.thread)
    left_ms = await stack.store.conn.command("PTTL", facts)
    assert 0 < cast("int", left_ms) <= KEEP_MS
