"""Execute an authorized call at most once: claim, verify, run, record the result.

The claim comes before the effect and the record after it. Killed in between, the call
is in doubt: it is never run again silently. The agent waits until a person said what
happened; a call that only the policy let run is reported as in doubt, without a pause.
Nothing here trusts the answer or the agent's state for what to run; the document in the
gateway's own record is verified against this call and then run, byte for byte.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, assert_never

from langgraph.errors import GraphBubbleUp, ParentCommand, is_invalid_resume

from twokey.agent import rechecks, tool_messages
from twokey.agent.bridge import Shell, ask_while_held, ask_with_retries
from twokey.agent.grants import Grant, grant_scope
from twokey.agent.heartbeats import heartbeats, stands
from twokey.agent.held_call import HeldCall, authorized_args
from twokey.agent.interrupts import drop_findings, request_reconciliation
from twokey.agent.nested_edits import collect_edits
from twokey.agent.outages import OUTAGES
from twokey.agent.tool_escapes import contained
from twokey.agent.unrecorded import report
from twokey.gateway.clock import now_s
from twokey.gateway.errors import (
    FINAL_ERRORS,
    ClockWrong,
    KeyRefused,
    StateUnknown,
    ThreadUnavailable,
    TwokeyError,
)
from twokey.gateway.failures import log_failure
from twokey.gateway.protocol import wire
from twokey.gateway.protocol.business_state import state_in
from twokey.gateway.protocol.port import Gateway
from twokey.gateway.protocol.records import EditRecord, Result
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import (
    Answer,
    AnswerKind,
    Busy,
    CheckState,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Done,
    InDoubt,
    ReconcileAnswer,
    Refused,
    Reopened,
    StateNow,
)
from twokey.gateway.uncancelled import begun

BUSY_DEADLINE_S = 120.0
"""How long to wait for another live owner before the thread is handed back."""

GIVE_BACK_S = 2.0
"""How long a cancelled attempt waits until its claim is given back."""

HANDED_OFF = Result(ok=True, summary="Handed off to the parent graph.")

logger = logging.getLogger(__name__)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Work(Generic[R]):
    """How an executor runs a call, stores its result and reports a failure.

    ``run`` gets the arguments that are authorized. ``store`` turns what it returned
    into what the gateway keeps, with the edits that were made inside it.
    """

    run: Callable[[JsonObject], Awaitable[R]]
    store: Callable[[R, list[EditRecord]], Result]
    failure: Callable[[str], R]


@dataclass(frozen=True, slots=True)
class Ran(Generic[R]):
    """It ran now."""

    result: R
    edit: EditRecord | None
    inside: list[EditRecord]
    reconciled: ReconcileAnswer | None = None


@dataclass(frozen=True, slots=True)
class RanBefore:
    """It ran before; ``result`` is what was stored.

    ``reconciled`` is what people found at its reconciliation, here and in `Ran`.
    """

    result: Result
    edit: EditRecord | None
    reconciled: ReconcileAnswer | None = None


@dataclass(frozen=True, slots=True)
class NotRun:
    """It does not run; ``reason`` is a string for the model."""

    reason: str


@dataclass(frozen=True, slots=True)
class CutOff:
    """It was cut off while it ran, and the agent does not wait to learn its end."""


@dataclass(frozen=True, slots=True)
class Closed:
    """It went back to people, who closed it; ``answer`` is their decision."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Reconciled:
    """It was cut off while it ran, and a person reconciled it."""

    finding: ReconcileAnswer
    edit: EditRecord | None = None


async def execute(
    held: HeldCall, gateway: Gateway, shell: Shell, work: Work[R]
) -> Ran[R] | RanBefore | Reconciled | CutOff | Closed | NotRun:
    """Execute a call that people or the policy authorized, at most once.

    Raises:
        ThreadUnavailable: when the gateway cannot be reached, or another owner does
            not finish in time. The answer is kept: resume the thread again later.
        StateUnknown: when the business state cannot be read; the same holds.
        KeyRefused: when a gateway in another process refuses the API key; likewise.
        GraphBubbleUp: when something inside the tool pauses; the claim is given back.
    """
    request = ClaimRequest(
        item_id=held.verdict.item_id,
        ref=held.ref,
        tool=held.verdict.tool,
        tool_call_id=held.verdict.tool_call_id,
        # Names this attempt: a claim whose reply was lost is granted again to its
        # owner, and to nobody else.
        owner=uuid.uuid4().hex,
    )
    while True:
        asked_s = now_s()
        reply = await _claim_when_free(held, request, gateway, shell)
        match reply:
            case Claimed():
                is_ours = await stands(
                    held.verdict.item_id, reply, gateway, shell, asked_s
                )
                end = (
                    await _run_once(held, reply, gateway, shell, work)
                    if is_ours
                    else None
                )
                if end is not None:
                    return end
                # Under the old owner an unrecorded claim would be granted again.
                request = request.with_(owner=uuid.uuid4().hex)
            case Done():
                drop_findings(held.verdict)
                return _stored_end(reply)
            case Refused():
                return NotRun(tool_messages.denial_text(reply.reason))
            case Reopened():
                ended = _decide_again(held, reply)
                if ended is not None:
                    return ended
            case InDoubt():
                reconciled = _reconcile(held, reply)
                if reconciled is not None:
                    return reconciled
            case _:
                assert_never(reply)


def _decide_again(held: HeldCall, reply: Reopened) -> Closed | NotRun | None:
    """Wait for people to decide again; None when the call may be claimed again."""
    if held.ask_again is None:
        return NotRun(tool_messages.denial_text(reply.reason))
    answer = held.ask_again()
    is_again = answer.type in {AnswerKind.APPROVE, AnswerKind.EDIT}
    return None if is_again else Closed(answer)


def _reconcile(held: HeldCall, reply: InDoubt) -> Reconciled | CutOff | None:
    """Wait for people to reconcile a call; None when they let the call run again."""
    if held.ask_again is None:
        return CutOff()
    finding = request_reconciliation(held.verdict)
    return None if finding.type == "rerun" else Reconciled(finding, reply.edit)


def _stored_end(reply: Done) -> RanBefore | Reconciled:
    if reply.reconcile_answer is not None:
        return Reconciled(reply.reconcile_answer, reply.edit)
    return RanBefore(reply.result, reply.edit, reply.reconciled)


async def _claim_when_free(
    held: HeldCall, request: ClaimRequest, gateway: Gateway, shell: Shell
) -> Claimed | Done | InDoubt | Refused | Reopened:
    deadline = time.monotonic() + BUSY_DEADLINE_S
    while True:
        reply = await _claim(request, gateway, shell)
        if isinstance(reply, CheckState):
            state = await _read_state(held, reply, shell)
            if state is None:
                return Refused(reason=tool_messages.MISMATCH)
            request = request.with_(state=state)
        elif not isinstance(reply, Busy):
            return reply
        # Also after `CheckState`: a state that changes at each read would never end.
        if time.monotonic() >= deadline:
            raise ThreadUnavailable(
                f"Item {request.item_id!r} is still being executed elsewhere after "
                f"{BUSY_DEADLINE_S:.0f} s; resume the thread again later."
            )
        if isinstance(reply, Busy):
            await shell.sleep(max(reply.retry_after_s, 0.01))


async def _claim(request: ClaimRequest, gateway: Gateway, shell: Shell) -> ClaimReply:
    try:
        return await ask_while_held(shell, lambda: gateway.claim(request))
    except asyncio.CancelledError:
        # It may be granted all the same; nobody would use it, and it would end as a
        # doubt that people have to clear up.
        giving_back = begun(_give_back(request, gateway, shell))
        await asyncio.wait([giving_back], timeout=GIVE_BACK_S)
        raise
    except KeyRefused:
        # Not a refusal of this call: it may run once the process has another key.
        raise
    except FINAL_ERRORS as error:
        return Refused(reason=str(error))
    except ClockWrong as error:
        raise ThreadUnavailable(str(error)) from error
    # Not a refusal: people have approved it, and the thread goes on once the gateway
    # answers again.
    except TwokeyError as error:
        raise ThreadUnavailable(
            f"The gateway did not answer for item {request.item_id!r}, so nothing ran; "
            "resume the thread again when it is back."
        ) from error


async def _give_back(request: ClaimRequest, gateway: Gateway, shell: Shell) -> None:
    """Give back a claim whose answer nobody waits for any more."""
    # Asked again by the same attempt, which does not run anything: that tells the fence
    # of what it was granted.
    reply = await ask_with_retries(shell, lambda: gateway.claim(request))
    if isinstance(reply, Claimed):
        item_id, fence = request.item_id, reply.fence
        await ask_with_retries(
            shell, lambda: gateway.release(item_id, fence, has_begun=False)
        )


async def _read_state(
    held: HeldCall, asked: CheckState, shell: Shell
) -> StateNow | None:
    """Read the state for what would run; None when that is not this call."""
    args = authorized_args(held, asked)
    if args is None:
        logger.warning("execution.mismatch item=%s", held.verdict.item_id)
        return None
    if held.recheck is None:
        raise StateUnknown(
            f"The tool {held.verdict.tool!r} has no recheck here, and the call was "
            "approved in one state only. It did not run; give the tool its recheck "
            "again."
        )
    state = await rechecks.read(shell, held.recheck, held.verdict.tool, args)
    return StateNow(action_hash=asked.action_hash, state=state)


async def _run_once(
    held: HeldCall, claimed: Claimed, gateway: Gateway, shell: Shell, work: Work[R]
) -> Ran[R] | NotRun | None:
    """Run a claimed call; None when it failed and people are asked what to do."""
    args = authorized_args(held, claimed)
    if args is None:
        logger.warning("execution.mismatch item=%s", held.verdict.item_id)
        # Released at once: nothing ran, and a claim that expires becomes a doubt.
        await _release(held, claimed, gateway, shell)
        return NotRun(tool_messages.MISMATCH)
    # Submitted before the tool had a recheck: people approved it without a state, so
    # there is none to compare with that of now.
    if held.recheck is not None and state_in(claimed.action) is None:
        await _release(held, claimed, gateway, shell)
        return NotRun(rechecks.STATE_MISSING)
    grant = Grant(
        item_id=held.verdict.item_id,
        idempotency_key=claimed.idempotency_key,
        action_hash=claimed.action_hash,
        tool=held.verdict.tool,
        args_hash=wire.args_hash(args),
        receipt=claimed.receipt,
    )
    beats = heartbeats(held.verdict.item_id, claimed, gateway)
    with collect_edits(held.ref.run_ref) as inside, grant_scope(grant), beats:
        try:
            with contained():
                result = await work.run(args)
        except ParentCommand:
            # Not a pause: the tool is done and hands off to the parent graph.
            await _finish(held, claimed, gateway, shell, HANDED_OFF)
            raise
        except Exception as error:
            # An outage of an agent inside it passes by tool nodes as a pause does. But
            # the tool has begun, and would not expect to be run again.
            is_outage = isinstance(error, OUTAGES)
            is_pause = isinstance(error, GraphBubbleUp) and not is_outage
            if is_pause or is_invalid_resume(error):
                # The tool pauses, or its own interrupt refused an answer: no failure.
                await _release(held, claimed, gateway, shell, has_begun=True)
                raise
            # Every exception of a tool: the effect may have happened, so the failure is
            # recorded under the claim. Raised, it would be replayed without end.
            result = work.failure(tool_messages.failure_text(error))
    stored = work.store(result, inside)
    await _finish(held, claimed, gateway, shell, stored)
    # The claim of the next round finds the failure and waits for people
    # (docs/decisions/0005).
    if claimed.asks_on_failure and not stored.ok:
        return None
    return Ran(result, claimed.edit, inside, claimed.reconciled)


async def _finish(
    held: HeldCall, claimed: Claimed, gateway: Gateway, shell: Shell, result: Result
) -> None:
    """Record the result, later where the gateway is away."""
    item_id, fence = held.verdict.item_id, claimed.fence
    try:
        is_ours = await ask_with_retries(
            shell, lambda: gateway.finish(item_id, fence, result)
        )
    except asyncio.CancelledError:
        # As when the lease on the thread ends while the gateway is away: the tool has
        # run, and without a report people would be asked whether it did.
        shell.begin(report(item_id, fence, result, gateway))
        raise
    except TwokeyError as error:
        # Not raised: the tool has run, and the model has to read what it returned. A
        # second run would be worse than a missing record.
        log_failure(logger, error, "execution.unrecorded item=%s", item_id)
        if isinstance(error, KeyRefused) or not isinstance(error, FINAL_ERRORS):
            shell.begin(report(item_id, fence, result, gateway))
        return
    if not is_ours:
        logger.warning("execution.finished_late item=%s", item_id)


async def _release(
    held: HeldCall,
    claimed: Claimed,
    gateway: Gateway,
    shell: Shell,
    *,
    has_begun: bool = False,
) -> None:
    item_id, fence = held.verdict.item_id, claimed.fence
    try:
        await ask_with_retries(
            shell, lambda: gateway.release(item_id, fence, has_begun=has_begun)
        )
    except TwokeyError as error:
        # The claim then expires and becomes a doubt, which is the safe side.
        log_failure(logger, error, "execution.unreleased item=%s", item_id)
