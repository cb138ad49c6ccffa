"""A run that goes on is recorded, also while its checkpoints cannot be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.resume.store_threads import ThreadRef
from keyturn.gateway.store.runs.jobs import Job, JobKind
from keyturn.gateway.store.runs.stalled import RunState
from tests.resume.resume_stack import Stack


async def with_a_message(stack: Stack, start: Job) -> ThreadRef:
    """Keep a run that failed, with a message that it was not given."""
    at = ThreadRef(stack.keys, "shop", "t1")
    retries = Retries(stack.store)
    queue = stack.store.queue(stack.keys)
    await queue.prepare()
    await retries.failed(at, ConnectionError(), left=start, is_last=True)
    run = await stack.store.stalled.find(stack.keys, at.run)
    assert run
    assert run.state is RunState.PARKED
    return at


async def test_a_checkpointer_that_is_away_ends_no_run_that_went_on(
    stack: Stack,
) -> None:
    start = Job(
        kind=JobKind.START, tenant="default", agent="shop", thread="t1", input="hi",
        id="m1",
    )  # fmt: skip
    at = await with_a_message(stack, start)

    async def away(thread: str, key: str) -> bool:
        raise ConnectionError(thread, key)

    runner = cast("Runner", SimpleNamespace(has_taken=away))
    await Retries(stack.store).record_resumed(at, None, runner)

    run = await stack.store.stalled.find(stack.keys, at.run)
    assert run
    assert run.jobs == (start,)
