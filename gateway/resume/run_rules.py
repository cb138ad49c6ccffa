"""Rules of the runs of a program, whichever gateway keeps their leases."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from langgraph.types import StreamMode

from twokey.gateway.approvals.record import Origin
from twokey.gateway.arguments import check_timeout
from twokey.gateway.errors import GraphError, StoreUnavailable, ThreadUnavailable
from twokey.gateway.failures import log_failure
from twokey.gateway.protocol.records import NO_SLACK_ID, Person, RunRef
from twokey.gateway.resume.classification import ThreadHalted
from twokey.gateway.resume.langgraph_local import STREAM_END, LangGraphLocal
from twokey.gateway.resume.questions import asked_items
from twokey.gateway.resume.runner import ThreadState
from twokey.gateway.resume.strict_state import strict_serializer

logger = logging.getLogger(__name__)


async def finish_before(run: RunRef, work: Awaitable[object]) -> None:
    """Finish what was asked of a thread before a new message, as far as it goes.

    Raises:
        StoreUnavailable, ThreadUnavailable: it can be finished later.
    """
    try:
        await work
    except (StoreUnavailable, ThreadUnavailable):
        raise
    except ThreadHalted:
        return
    except Exception as error:  # noqa: BLE001 - see below
        # A thread that cannot go on must not keep out the message that may bring it
        # back on its way; the middleware repairs the turn.
        log_failure(
            logger,
            error,
            "thread.finish_failed agent=%s thread=%s",
            run.agent,
            run.thread,
        )


@asynccontextmanager
async def wait_at_most(timeout_s: float | None, thread: str) -> AsyncGenerator[None]:
    """Bound a wait for a thread; None waits as long as it takes.

    Raises:
        TimeoutError: says what happens to the thread, and how to wait on.
        SettingsError: when ``timeout_s`` is no number of seconds.
    """
    check_timeout(timeout_s)
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise  # a step's own error
        raise TimeoutError(
            f"The thread {thread!r} was not finished within {timeout_s:g} s. It goes "
            "on; call run or wait with the same thread_id to wait longer, or pending "
            "to see what waits for people."
        ) from error


def rests_for_good(state: ThreadState) -> bool:
    """Return True if nothing of ours will bring this thread forward."""
    if state.is_finished or not state.exists:
        return True
    is_asking = bool(state.pending) and not state.is_cut_off
    return is_asking and not asked_items(state.pending)


def input_key(given: object) -> str:
    """Return the key of an input, by which a thread knows that it has it."""
    # By value, so that the same input has the same key in the next process.
    kind, body = strict_serializer().dumps_typed(given)
    return f"run-{hashlib.sha256(kind.encode() + body).hexdigest()[:32]}"


def given_up(agent: str, thread: str, reason: str) -> GraphError:
    """Return the error about a thread that is not brought forward any more."""
    return GraphError(
        f"The thread {thread!r} of {agent!r} was given up: {reason} Mend the cause and "
        "run it again without input."
    )


def named_run(agent: object, thread_id: object) -> RunRef:
    """Return the run of an agent and a thread that a program names.

    Raises:
        GraphError: when it is no name of an agent, or of a thread.
    """
    if not isinstance(agent, str) or not agent.strip():
        raise GraphError(
            f"agent={agent!r} names no agent; give the name that the graph's "
            "ApprovalMiddleware(…) has, or leave it out for 'agent'."
        )
    if not isinstance(thread_id, str) or not thread_id:
        raise GraphError(
            f"thread_id={thread_id!r} names no thread; give a text that is not empty, "
            "such as str(...) of a number or a UUID."
        )
    return RunRef(agent=agent, thread=thread_id)


def check_who_asked(requester: object, origin: object) -> None:
    """Check who a program says asked, and where.

    Raises:
        TypeError: when one of them is of another type.
        ValueError: when who asked has no id of a Slack user.
    """
    for name, given, kind in (
        ("requester", requester, Person),
        ("origin", origin, Origin),
    ):
        if not (given is None or isinstance(given, kind)):
            raise TypeError(
                f"{name}={given!r} is no {kind.__name__}; give "
                f"twokey.gateway.approvals.record.{kind.__name__}."
            )
    if isinstance(requester, Person) and not requester.has_slack_id:
        raise ValueError(f"requester={requester!r}: {NO_SLACK_ID}")


async def streamed(
    runner: LangGraphLocal,
    run: Callable[[], Coroutine[Any, Any, object]],
    modes: StreamMode | Sequence[StreamMode],
    *,
    subgraphs: bool,
) -> AsyncGenerator[Any]:
    """Run a thread and yield what its steps stream, across every wait."""
    with runner.streaming(modes, subgraphs=subgraphs) as chunks:
        running = asyncio.create_task(run())
        # However the run ends, or `chunks.get` would wait for ever.
        running.add_done_callback(lambda _: chunks.put_nowait(STREAM_END))
        try:
            while (chunk := await chunks.get()) is not STREAM_END:
                yield chunk
            await running  # raises what the run raised
        finally:
            running.cancel()  # only this wait ends; the thread goes on
            await asyncio.gather(running, return_exceptions=True)
