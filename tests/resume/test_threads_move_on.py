"""A thread always moves on: expiry, new words, several calls, failures, restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.bot.cards.states import card_fallback
from keyturn.gateway.approvals.decisions import Reconcile, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.http_api import connected
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.runs.jobs import Delivery, JobQueue, input_of
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.levels import size
from tests.panics import apanic
from tests.resume import sample_tools
from tests.resume.resume_stack import DAN, EMAIL, REFUND, RULES, Stack, open_stack


async def test_an_approved_call_runs_before_a_new_message(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()

    await stack.decide(item)
    await stack.say("thank you")
    async with stack.working(slots=1):
        await eventually(lambda: _finished(stack))

    assert len(sample_tools.ledger()) == 1
    assert await stack.states() == [ItemState.EXECUTED]


async def test_a_job_of_another_programs_agent_is_left_to_it(stack: Stack) -> None:
    await stack.reviews.ask_agent("other", "t9", "hi", requester=DAN, origin=None)
    async with stack.working():
        await stack.say("hello")
        await stack.words()

    assert await stack.store.queue(stack.keys).depth() == 1


async def _finished(stack: Stack) -> bool:
    state = await stack.runner.probe("t1")
    return state.is_finished and state.final_message == "You said thank you"


async def test_reading_jobs_goes_on_after_anything(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyturn.gateway.resume.worker.FIRST_PAUSE_S", 0.01)
    troubles: list[Exception] = [
        StoreUnavailable("gone"),
        RuntimeError("never seen before"),
        StoreUnavailable("gone"),
    ]
    take = JobQueue.take

    async def troubled(self: JobQueue, *, block_ms: int) -> object:
        if troubles:
            raise troubles.pop(0)
        return await take(self, block_ms=block_ms)

    monkeypatch.setattr(JobQueue, "take", troubled)
    async with stack.working():
        await stack.say("hello")
        assert await stack.words() == "You said hello"

    assert troubles == []


async def decide_two_amid_the_run_of_one(
    stack: Stack, is_running: asyncio.Event
) -> None:
    """Request three calls; decide two while the first answer is resumed."""
    await stack.ask(*(("refund", {"order": n, "amount": 5.0}) for n in "123"))
    first, *others = await stack.asked(3)
    await stack.decide(first)
    await is_running.wait()
    for item in others:
        await stack.decide(item)


async def test_what_is_decided_amid_a_run_that_fails_is_carried_out(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = Runner.resume
    troubles = [StoreUnavailable("gone"), StoreUnavailable("gone")]
    may_go_on, is_running = asyncio.Event(), asyncio.Event()

    async def troubled(
        self: Runner, thread: str, answers: Mapping[str, Any], **named: Any
    ) -> None:
        is_running.set()
        await may_go_on.wait()
        if troubles:
            raise troubles.pop()
        await resume(self, thread, answers, **named)

    monkeypatch.setattr(Runner, "resume", troubled)
    async with stack.working():
        await decide_two_amid_the_run_of_one(stack, is_running)
        may_go_on.set()

        assert await stack.words()
        assert set(await stack.states()) == {ItemState.EXECUTED}
    assert troubles == []


@pytest.mark.slow
async def test_a_stop_without_grace_hands_the_job_back_and_hides_no_doubt(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyturn.gateway.resume.worker.GRACE_S", 0.05)
    async with stack.working():
        await stack.ask(("slow", {"order": "1", "seconds": 0.7}))
        [slow] = await stack.asked()
        await stack.idle()  # or the job that asked would take the decision along
        await stack.decide(slow)
        await eventually(_has_begun)

    assert await stack.store.queue(stack.keys).depth() == 1
    async with stack.working():
        await eventually(lambda: _is_in_doubt(stack))
        await stack.idle()
        [item] = await stack.items()
        await stack.decide(item, Reconcile(finding=Finding.EXECUTED))
        await stack.words()

    assert sample_tools.ledger() == ["begin 1", "end 1"]


@pytest.mark.slow
async def test_a_stop_lets_the_running_tool_finish(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(("slow", {"order": "1", "seconds": 0.7}))
        [slow] = await stack.asked()
        await stack.decide(slow)
        await eventually(_has_begun)

    assert sample_tools.ledger() == ["begin 1", "end 1"]
    assert await stack.states() == [ItemState.EXECUTED]


async def _has_begun() -> bool:
    return bool(sample_tools.ledger())


async def _is_in_doubt(stack: Stack) -> bool:
    return await stack.states() == [ItemState.IN_DOUBT]


async def test_a_run_that_panics_is_recorded_and_retried(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = stack.keys.stalled_run("shop", "t1")

    async def has_failed() -> bool:
        run = await stack.store.stalled.find(stack.keys, failed)
        return run is not None and "Panic" in run.detail

    with monkeypatch.context() as patch:
        patch.setattr(AgentService, "submit", apanic)
        async with stack.working():
            await stack.ask(("email", {"to": "ana@example.org"}))
            await eventually(has_failed)
            patch.undo()
            await stack.asked()


@pytest.mark.slow
async def test_an_approved_call_waits_for_the_gateway_that_knows_its_thread(
    store: Store, stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
    async with open_stack(store, tmp_path / "other.db") as other:
        await stack.decide(item)
        async with other.working():
            await eventually(lambda: "thread.not_run_here" in caplog.text)
        assert await store.queue(stack.keys).depth() == 1

    async with stack.working():
        assert await stack.words() == "refunded 78291 899"
        await stack.idle()
    assert len(sample_tools.ledger()) == 1


@pytest.mark.slow
async def test_other_jobs_go_on(store: Store, stack: Stack, tmp_path: Path) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
    await stack.decide(item, Reject(reason="no"))

    async with open_stack(store, tmp_path / "other.db") as other, other.working():
        await other.idle()


def look_up(order: str) -> str:
    """Return a message that has the agent look up an order."""
    return json.dumps([["look_up", {"order": order}]])


async def taken_by_one_that_dies(stack: Stack, text: str) -> Delivery:
    """Give the thread a message as a worker that dies before it acknowledges it."""
    queue = stack.store.queue(stack.keys)
    await queue.prepare()
    await stack.say(text)
    delivery = await queue.take(block_ms=1000)
    assert delivery
    with connected(AgentService(stack.store, lambda: RULES)):
        given = input_of(stack.store.sealing, delivery.job)
        await stack.runner.start("t1", given, key=delivery.job.id)
    return delivery


@pytest.mark.slow
async def test_an_overtaken_message_is_not_given_again(stack: Stack) -> None:
    await taken_by_one_that_dies(stack, look_up("A"))
    await stack.say(look_up("B"))

    async with stack.working():
        await stack.words(2)
        await stack.idle()

    assert sample_tools.ledger() == ["look_up A", "look_up B"]
    told = await stack.events(EventName.RUN_FINISHED)
    assert [one.data["text"] for one in told] == ["found A", "found B"]


@pytest.mark.slow
async def test_it_is_known_however_many_came_since(stack: Stack) -> None:
    others = size(deep=12, short=4)
    delivery = await taken_by_one_that_dies(stack, look_up("A"))
    async with stack.working():
        for number in range(others):
            await stack.say(look_up(f"B{number}"))
        await stack.words(others + 1)
        # Under another id of the stream, as a job that was put back comes again.
        await stack.store.queue(stack.keys).put(delivery.job)
        await stack.idle()

    assert sample_tools.ledger().count("look_up A") == 1


class Dying(InMemorySaver):
    """A saver whose process dies in place of one checkpoint."""

    def __init__(self, *, after: int) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - its types are partial
        self.left = after

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        self.left -= 1
        if self.left == -1:
            raise SystemError("killed")
        return await super().aput(config, checkpoint, metadata, new_versions)


@pytest.mark.parametrize("checkpoints", range(1, 4))
async def test_results_without_a_checkpoint_are_cut_off(checkpoints: int) -> None:
    saver = Dying(after=checkpoints)
    runner = Runner(attached(sample_tools.graph(), saver))
    with pytest.raises(SystemError):
        await runner.start("t1", "hello", key="k")

    state = await runner.probe("t1")
    assert state.is_cut_off
    await runner.nudge("t1", key="k")

    assert (await runner.probe("t1")).final_message == "You said hello"


# What becomes of a call that failed, or whose tool changed, after its approval.


@tool("refund")
def renamed(order: str, value: float) -> str:
    """Give money back."""
    sample_tools.note(f"refund {order} {value}")
    return "refunded"


@tool
def other(to: str) -> str:
    """Send something else."""
    return to


@asynccontextmanager
async def changed(store: Store, path: Path, given: BaseTool) -> AsyncGenerator[Stack]:
    """Run the shop's agent with another tool, as after a deployment."""
    async with open_checkpoints(str(path)) as saver:
        graph = create_agent(
            sample_tools.obedient(), [given], middleware=[ApprovalMiddleware("shop")]
        )
        yield Stack(store, Runner(attached(graph, saver), agent="shop"), saver)


@pytest.mark.slow
@pytest.mark.parametrize("is_early", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (guarded(renamed), "do not fit the tool 'refund', so it did not run"),
        (other, "There is no tool 'refund' here, so this call did not run"),
    ],
    ids=["another-schema", "no-tool"],
)
async def test_a_call_whose_tool_changed_fails_and_the_agent_is_told_why(
    store: Store,
    tmp_path: Path,
    given: BaseTool,
    told: str,
    *,
    is_early: bool,
) -> None:
    path = tmp_path / "checkpoints.sqlite"
    async with open_stack(store, path) as stack:
        async with stack.working():
            await stack.ask(REFUND)
            [item] = await stack.asked()
            await stack.idle()
        if is_early:
            await stack.decide(item)

    async with changed(store, path, given) as stack, stack.working():
        if not is_early:
            await stack.decide(item)
        assert told in await stack.words()
        [approval] = await stack.approvals()

    assert [one.state for one in approval.items] == [ItemState.FAILED]
    assert " ran" not in card_fallback(approval)
    assert sample_tools.ledger() == []


CHARGE = ("charge", {"order": "78291"})


@pytest.fixture(autouse=True)
def _bank_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_tools, "is_bank_down", True)


async def failed(stack: Stack) -> Item:
    """Wait until a charge has failed, and the thread asks about it."""

    async def is_so() -> bool:
        doubts = await stack.events(EventName.ITEM_IN_DOUBT)
        asked = [str(one.value) for one in (await stack.runner.probe("t1")).pending]
        return len(doubts) == 1 and any("keyturn.reconcile" in one for one in asked)

    await eventually(is_so)
    await stack.idle()
    return (await stack.items())[0]


async def charge(stack: Stack) -> Item:
    """Approve a charge, which fails, and an e-mail, which is sent."""
    await stack.ask(CHARGE, EMAIL)
    charging, email = await stack.asked(2)
    await stack.decide(email)
    await stack.decide(charging)
    return await failed(stack)


async def test_people_run_it_again_alone_and_under_its_key(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack.working():
        item = await charge(stack)
        assert item.state is ItemState.IN_DOUBT
        assert item.has_failed
        monkeypatch.setattr(sample_tools, "is_bank_down", False)

        again = Reconcile(finding=Finding.RERUN, note="the bank is up")
        outcome = await stack.decide(item, again)
        words = await stack.words()

    assert outcome.kind == "decided"
    assert 'Their note: "the bank is up".' in words
    assert words.endswith("charged 78291 | mailed ana@example.org")
    lines = [line for line in sample_tools.ledger() if line.startswith("charge")]
    assert (len(lines), len(set(lines))) == (2, 1), "twice, under one key"
    assert len(sample_tools.ledger()) == 3, "the e-mail was not sent again"
    assert (await stack.states())[0] is ItemState.EXECUTED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("finding", "state", "told"),
    [
        (Finding.SKIP, ItemState.FAILED, "the bank is down"),
        (Finding.EXECUTED, ItemState.EXECUTED, "confirmed that it took effect"),
    ],
)
async def test_what_people_say_instead_is_what_the_agent_reads(
    stack: Stack, finding: Finding, state: ItemState, told: str
) -> None:
    async with stack.working():
        item = await charge(stack)
        await stack.decide(item, Reconcile(finding=finding, note="4711"))
        words = await stack.words()

    assert told in words
    assert 'Their note: "4711"' in words
    assert (await stack.states())[0] is state
    assert len([one for one in sample_tools.ledger() if one.startswith("charge")]) == 1
