"""Run an auto-approved call at most once, even if another process takes its thread.

These are the calls of tier ``auto``.

A process that runs a thread may be paused inside a call, replaced, and continue later.
The gateway is therefore asked before each call, as for an approved one. If an earlier
holder of the thread's lease finished the call, it does not run again: the agent gets
the stored result. If the earlier holder was cut off in the call, it is not repeated
either, unless the policy marks the tool as idempotent. A call inside which an agent had
begun is entered again, because each call of that agent has a separate record.

A call does not start without the gateway's answer. Reporting its end is best effort: if
the gateway does not answer, the agent continues.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from langgraph.errors import GraphBubbleUp, ParentCommand, is_invalid_resume

from keyturn.agent.execution import HANDED_OFF, Work
from keyturn.agent.grants import Grant, contained, grant_scope
from keyturn.agent.turns import collect_edits
from keyturn.gateway import tracing
from keyturn.gateway.client.bridge import Shell, ask_or_wait, ask_with_retries
from keyturn.gateway.client.claiming import CutOff, HeldCall, Ran, RanBefore
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.failures import any_failure
from keyturn.gateway.protocol import digest, texts, wire
from keyturn.gateway.protocol.http_api import Gateway
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.protocol.run_context import inside

MAX_PAYLOAD_CHARS = 64 * 1024
"""Largest stored output. These calls are frequent, and the output is needed only until
the thread's next checkpoint contains it.
"""

_NOT_KEPT = wire.CallBegun(keeps_result=False)

logger = logging.getLogger(__name__)
R = TypeVar("R")


async def run_auto_approved(
    held: HeldCall,
    work: Work[R],
    *,
    gateway: Callable[[], Gateway],
    shell: Shell,
    is_replayed: bool = False,
    went_well: Callable[[R], bool] = lambda _: False,
) -> Ran[R] | RanBefore | CutOff:
    """Run a call without an approval record and report its end; errors are re-raised.

    A call that pauses or raises has not ended: it is released and may begin again. A
    cancelled call stays begun: its progress is unknown, so a later holder of the lease
    does not repeat it. The end is `RanBefore` or `CutOff` if the call began under an
    earlier lease.

    Args:
        held: the call, with the gateway's verdict.
        work: runs the call and stores its result; errors are not converted.
        gateway: returns the gateway.
        shell: waits for the gateway.
        is_replayed: the call's node runs again from its start after each pause, so the
            call may run again when its result is too large to be stored.
        went_well: returns True if the end need not be reported to a gateway that stores
            no results; failures are always counted.

    Raises:
        ThreadUnavailable: when the gateway does not answer; nothing ran.
    """
    call = _Call(held.ref, held.verdict, gateway, shell)
    begun = await call.begin()
    if not begun.may_run:
        return CutOff() if begun.result is None else RanBefore(begun.result, None)
    grant = grant_scope(_grant_for(held.ref, held.verdict))
    with collect_edits(held.ref.run_ref) as inside, grant:

        def stored(result: R) -> Result | None:
            # None is not reported.
            if not begun.keeps_result and went_well(result):
                return None
            return work.store(result, inside)

        run = partial(work.run, held.args)
        attempt = _run_begun(call, run, stored, is_replayed=is_replayed)
        result = await shell.outliving_lease(attempt)
    return Ran(result, None, inside)


async def _run_begun(
    call: _Call,
    run: Callable[[], Awaitable[R]],
    store: Callable[[R], Result | None],
    *,
    is_replayed: bool,
) -> R:
    """Run a call that was begun, and report its end."""
    try:
        with inside(_running, call), contained():
            result = await _traced(call.verdict, run)
    except ParentCommand:
        # Not a pause: the tool is done and hands off to the parent graph.
        await call.end(HANDED_OFF)
        raise
    except any_failure() as error:
        # A cancellation is not caught: the call stays begun, since its progress is
        # unknown.
        if isinstance(error, GraphBubbleUp) or is_invalid_resume(error):
            await call.report("give_back")
        else:
            # Reported, but not as over: a retry of the node may run the call again.
            await call.end(texts.failed_result(error), is_over=False)
        raise
    done = store(result)
    if done is None:
        return result
    if len(done.payload) > MAX_PAYLOAD_CHARS:
        done = done.with_(payload="")
    await call.end(done, is_over=bool(done.payload) or not is_replayed)
    return result


async def _traced(verdict: wire.Verdict, run: Callable[[], Awaitable[R]]) -> R:
    told = tracing.about(verdict.tool, verdict.tool_call_id, verdict.tier, "")
    with tracing.tool_span(told) as span:
        try:
            return await run()
        except any_failure() as error:
            if not isinstance(error, GraphBubbleUp):
                tracing.failed(span, error)
            raise


def _grant_for(ref: wire.TurnRef, verdict: wire.Verdict) -> Grant:
    """Return the right to run a call without a record."""
    context = {**ref.names, "tool_call_id": verdict.tool_call_id}
    return Grant(
        item_id="",
        idempotency_key=digest.claim_key(context, verdict.args_hash),
        action_hash="",
        tool=verdict.tool,
        args_hash=verdict.args_hash,
    )


async def note_nested_agent() -> None:
    """Report that a nested agent begins inside the running call, if there is one."""
    call = _running.get()
    if call is not None:
        await call.enter()


@dataclass(slots=True)
class _Call:
    """Report one attempt at a call to the gateway: begin, enter, give back, end."""

    ref: wire.TurnRef
    verdict: wire.Verdict
    gateway: Callable[[], Gateway]
    shell: Shell
    is_entered: bool = False

    async def begin(self) -> wire.CallBegun:
        if not self.gateway().keeps_calls():
            return _NOT_KEPT
        about = f"a call of {self.verdict.tool!r}"
        return await ask_or_wait(self.shell, partial(self._progress, "begin"), about)

    async def enter(self) -> None:
        if not self.is_entered:
            await self.report("enter")
            # Set even if the report failed. A later holder of the lease then does not
            # enter the call again, which is safe.
            self.is_entered = True

    async def end(self, result: Result, *, is_over: bool = True) -> None:
        verdict = self.verdict
        end = wire.CallEnd(
            ref=self.ref,
            tool=verdict.tool,
            tool_call_id=verdict.tool_call_id,
            result=result,
            is_over=is_over,
        )

        try:
            await self.shell.ask(lambda: self.gateway().ended(end))
        except KeyturnError:
            logger.warning("call.report_failed tool=%s", verdict.tool)

    async def _progress(self, verb: wire.ProgressVerb) -> wire.CallBegun:
        progress = wire.CallProgress(
            verb=verb, ref=self.ref, tool_call_id=self.verdict.tool_call_id,
            tool=self.verdict.tool,
        )  # fmt: skip
        return await self.gateway().report_progress(progress)

    async def report(self, verb: wire.ProgressVerb) -> None:
        try:
            await ask_with_retries(self.shell, partial(self._progress, verb))
        except KeyturnError:
            logger.warning("call.report_failed tool=%s", self.verdict.tool)


_running: ContextVar[_Call | None] = ContextVar("keyturn_auto_approved", default=None)
