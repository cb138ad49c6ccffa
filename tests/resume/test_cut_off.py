"""Work that was cut off is taken up again, also while other work of its thread asks."""

from __future__ import annotations

import pytest
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent.calls import Caller, Handler
from keyturn.agent.result_codec import ToolResult
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import TurnRef, Verdict
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import AT_ONCE, Stack


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


REFUND = ("refund", {"order": "78291", "amount": 899.0})
EMAIL = ("email", {"to": "ana@example.org"})


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> list[Exception]:
    """Raise these, one an attempt, before an e-mail asks and after its sibling did."""
    stack.store.retries = AT_ONCE
    errors: list[Exception] = [RuntimeError("never seen before")]
    held_before = Caller._wait_and_run  # pyright: ignore[reportPrivateUsage] - where a call begins to ask

    async def is_asking() -> bool:
        return bool((await stack.runner.probe("t1")).pending)

    async def held(
        self: Caller,
        request: ToolCallRequest,
        run: Handler,
        ref: TurnRef,
        verdict: Verdict,
    ) -> ToolResult:
        if verdict.tool == "email" and errors:
            await eventually(is_asking)
            raise errors.pop()
        return await held_before(self, request, run, ref, verdict)

    monkeypatch.setattr(Caller, "_wait_and_run", held)
    return errors


@pytest.mark.slow
async def test_a_call_that_failed_before_it_asked_asks_in_the_next_attempt(
    stack: Stack, failures: list[Exception]
) -> None:
    async with stack.working():
        await stack.ask(REFUND, EMAIL)
        for item in await stack.asked(2):
            await stack.decide(item)
        words = await stack.words()

    assert failures == []
    assert words == "refunded 78291 899 | mailed ana@example.org"
    assert await stack.states() == [ItemState.EXECUTED] * 2


@pytest.mark.parametrize("checkpoints", range(1, 4))
async def test_results_without_their_checkpoint_are_work_that_was_cut_off(
    checkpoints: int,
) -> None:
    saver = Dying(after=checkpoints)
    runner = Runner(attached(sample_tools.graph(), saver))
    with pytest.raises(SystemError):
        await runner.start("t1", "hello", key="k")

    state = await runner.probe("t1")
    assert state.is_cut_off
    await runner.nudge("t1", key="k")

    assert (await runner.probe("t1")).final_message == "You said hello"
