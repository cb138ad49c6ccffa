"""Execute an authorized call at most once: claim, verify, run, record the result.

The claim comes before the effect and the record after it. Killed in between, the call
is in doubt: it is never run again silently. The agent waits until a person said what
happened; a call that only the policy let run is reported as in doubt, without a pause.
Nothing here trusts the answer or the agent's state for what to run; the document in the
gateway's own record is verified against this call and then run: the same JSON, in the
order and number types of the call where these are equal.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, TypeVar, assert_never, cast

from langgraph.errors import GraphBubbleUp, ParentCommand, is_invalid_resume

from keyturn.agent import bridge, rechecks, tool_messages
from keyturn.agent.bridge import Shell, ask_while_held, ask_with_retries
from keyturn.agent.grants import Grant, grant_scope
from keyturn.agent.interrupts import drop_findings, request_reconciliation
from keyturn.agent.nesting import collect_edits
from keyturn.agent.rechecks import Recheck
from keyturn.agent.tool_escapes import contained
from keyturn.gateway import background
from keyturn.gateway.background import begun
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import (
    FINAL_ERRORS,
    BadJson,
    ClockWrong,
    KeyRefused,
    KeyturnError,
    StateUnknown,
    StoreUnavailable,
    ThreadUnavailable,
)
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol import digest, wire
from keyturn.gateway.protocol.business_state import is_same_but_state, state_in
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.records import (
    EditOutcome,
    EditRecord,
    FailureKind,
    Reading,
    Result,
)
from keyturn.gateway.protocol.run_context import one_write
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
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
    TurnRef,
    Verdict,
)
from keyturn.gateway.protocol.work import aside

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
    into what the gateway keeps, with the edits that were made inside it. ``failure``
    gets the words of an error; the advice to the model is added where it reads them.
    """

    run: Callable[[JsonObject], Awaitable[R]]
    store: Callable[[R, list[EditRecord]], Result]
    failure: Callable[[str], R]


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
        owner=uuid.uuid4().hex,
    )
    while True:
        asked_s = now_s()
        reply = await _claim_when_free(held, request, gateway, shell)
        match reply:
            case Claimed():
                # Its end is recorded by the fence of its claim.
                told = request.reading
                end = await shell.outliving_lease(
                    _run_once(held, reply, gateway, shell, work, asked_s, told)
                )
                if end is not None and not isinstance(end, Reading):
                    return end
                # Under the old owner an unrecorded claim would be granted again. An
                # edit that reads otherwise goes back to people, with its reading.
                request = request.with_(owner=uuid.uuid4().hex, reading=end)
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
    edit = reply.edit
    if edit is not None and finding.type == "executed":
        edit = edit.with_(outcome=EditOutcome.EXECUTED)
    return None if finding.type == "rerun" else Reconciled(finding, edit)


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
            state = await read_state(held, reply, shell)
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
    # A claim whose answer was lost is granted again to its own write alone.
    write = dict[str, str]()

    async def ask() -> ClaimReply:
        with one_write(write):
            return await gateway.claim(request)

    try:
        return await ask_while_held(shell, ask)
    except asyncio.CancelledError:
        # It may be granted all the same; nobody would use it, and it would end as a
        # doubt that people have to clear up.
        giving_back = begun(_give_back(request.item_id, ask, gateway, shell))
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
    except KeyturnError as error:
        raise ThreadUnavailable(
            f"The gateway did not answer for item {request.item_id!r}, so nothing ran; "
            "resume the thread again when it is back."
        ) from error


async def _give_back(
    item_id: str,
    ask: Callable[[], Coroutine[Any, Any, ClaimReply]],
    gateway: Gateway,
    shell: Shell,
) -> None:
    """Give back a claim whose answer nobody waits for any more."""
    # Asked again by the same attempt, which does not run anything: that tells the fence
    # of what it was granted.
    reply = await ask_with_retries(shell, ask)
    if isinstance(reply, Claimed):
        fence = reply.fence
        await ask_with_retries(
            shell, lambda: gateway.release(item_id, fence, has_begun=False)
        )


async def _run_once(
    held: HeldCall,
    claimed: Claimed,
    gateway: Gateway,
    shell: Shell,
    work: Work[R],
    asked_s: float,
    told: Reading | None,
) -> Ran[R] | NotRun | Reading | None:
    """Run a claimed call; None when its claim ended, or people are asked after it.

    Returns how the tool reads an edit that it would not run exactly.
    """
    if not await stands(held.verdict.item_id, claimed, gateway, shell, asked_s):
        return None
    args = await aside(partial(authorized_args, held, claimed), [claimed.action])
    if args is None:
        logger.warning("execution.mismatch item=%s", held.verdict.item_id)
        # At once: nothing ran, and a claim that expires becomes a doubt.
        await _release(held, claimed, gateway, shell)
        return NotRun(tool_messages.MISMATCH)
    # Submitted before the tool had a recheck, so there is no state to compare.
    if held.recheck is not None and state_in(claimed.action) is None:
        await _release(held, claimed, gateway, shell)
        return NotRun(rechecks.STATE_MISSING)
    misread = misreading(held, claimed, args, told)
    if misread is not None:
        await _release(held, claimed, gateway, shell)
        return misread
    grant = Grant(
        item_id=held.verdict.item_id,
        idempotency_key=claimed.idempotency_key,
        action_hash=claimed.action_hash,
        tool=held.verdict.tool,
        args_hash=wire.args_hash(args),
        receipt=claimed.receipt,
    )
    beats = heartbeats(held.verdict.item_id, claimed, gateway)
    failed: Result | None = None
    with collect_edits(held.ref.run_ref) as inside, grant_scope(grant), beats:
        try:
            with contained():
                result = await work.run(args)
        except ParentCommand:
            # Not a pause: the tool is done and hands off to the parent graph.
            await _finish(held, claimed, gateway, shell, HANDED_OFF)
            raise
        except any_failure() as error:
            # An outage of an agent inside it passes by tool nodes as a pause does. But
            # the tool has begun, and would not expect to be run again.
            is_outage = isinstance(error, OUTAGES)
            is_pause = isinstance(error, GraphBubbleUp) and not is_outage
            if is_pause or is_invalid_resume(error):
                # The tool pauses, or its own interrupt refused an answer: no failure.
                await _release(held, claimed, gateway, shell, has_begun=True)
                raise
            # Every error of a tool, panics of libraries included: the effect may have
            # happened, so the failure is recorded under the claim. Raised, it would be
            # replayed without end.
            failed = tool_messages.failed_result(error)
            result = work.failure(failed.summary)
    stored = work.store(result, inside)
    if failed is not None:
        stored = failed.with_(payload=stored.payload)
    await _finish(held, claimed, gateway, shell, stored)
    # The claim of the next round finds the failure and waits for people
    # (docs/decisions/0005).
    if claimed.asks_on_failure and not stored.ok:
        return None
    edit = claimed.edit and claimed.edit.with_(outcome=stored.edit_outcome)
    return Ran(result, edit, inside, claimed.reconciled, stored.failure)


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
    except KeyturnError as error:
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
    except KeyturnError as error:
        # The claim then expires and becomes a doubt, which is the safe side.
        log_failure(logger, error, "execution.unreleased item=%s", item_id)


# Report the end of an execution beside the run, until the gateway has it.
#
# A store whose master is replaced is away for longer than an executor waits. Its
# process lives and knows what the tool returned. Without a report the claim would end
# as a doubt, and people would be asked whether the call ran.
#
# A report counts however late it comes, and once: it carries the fence of its claim. A
# process that dies meanwhile leaves the doubt.

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 2.0
REPORT_FOR_S = 3600.0
"""How long a result is kept for its report; people can say the same meanwhile."""


async def report(item_id: str, fence: int, result: Result, gateway: Gateway) -> None:
    """Report what an execution came to, until the gateway has answered."""
    pause, ends = FIRST_PAUSE_S, now_s() + REPORT_FOR_S
    while now_s() < ends:
        await asyncio.sleep(pause)
        try:
            async with asyncio.timeout(bridge.PORT_TIMEOUT_S):
                is_ours = await gateway.finish(item_id, fence, result)
        except (KeyturnError, OSError) as error:
            if isinstance(error, FINAL_ERRORS) and not isinstance(error, KeyRefused):
                break
            pause = min(pause * 2, LONGEST_PAUSE_S)
            continue
        if is_ours:
            logger.info("execution.recorded item=%s", item_id)
        else:
            logger.warning("execution.finished_late item=%s", item_id)
        return
    logger.warning("execution.never_recorded item=%s", item_id)


async def stands(
    item_id: str, claimed: Claimed, gateway: Gateway, shell: Shell, asked_s: float
) -> bool:
    """Return whether a claim that was just granted is still ours.

    This process may have been paused since it asked, or its event loop held up by
    another tool, and the claim have ended: then people are asked what became of it, and
    may let another attempt run.

    Raises:
        ThreadUnavailable: when the gateway does not say; nothing ran.
    """
    if now_s() - asked_s < claimed.lease_s / 2:
        return True
    try:
        is_ours = await ask_with_retries(
            shell, lambda: gateway.heartbeat(item_id, claimed.fence)
        )
    except KeyturnError as error:
        raise ThreadUnavailable(
            f"The gateway did not say whether {item_id!r} may still run, so nothing "
            "ran; resume the thread again when it is back."
        ) from error
    if not is_ours:
        logger.warning("execution.claim_lost item=%s", item_id)
    return is_ours


@contextmanager
def heartbeats(item_id: str, claimed: Claimed, gateway: Gateway) -> Generator[None]:
    """Keep a claim alive while the block runs."""
    beats = _Beats(item_id, claimed.fence, claimed.lease_s, gateway)
    beats.send_later()
    try:
        yield
    finally:
        beats.is_over = True


class _Beats:
    """The heartbeats of one claim, sent from the background loop."""

    def __init__(
        self, item_id: str, fence: int, lease_s: float, gateway: Gateway
    ) -> None:
        self._item_id = item_id
        self._fence = fence
        # Two beats before the lease ends, so that one of them may fail.
        self._pause_s = max(lease_s / 3, 0.05)
        self._gateway = gateway
        self.is_over = False

    def send_later(self) -> None:
        background.call_later(self._pause_s, self._begin)

    def _begin(self) -> None:
        if not self.is_over:
            begun(self._send())

    async def _send(self) -> None:
        try:
            is_ours = await self._gateway.heartbeat(self._item_id, self._fence)
        except (KeyturnError, OSError):
            # Not given up: the gateway may be back before the lease ends.
            is_ours = None
        if self.is_over:
            return
        if is_ours is None:
            logger.warning("execution.heartbeat_failed item=%s", self._item_id)
        elif not is_ours:
            # The gateway has put the call in doubt, but a running tool cannot be
            # stopped. Its result is still recorded, as a late report.
            logger.warning("execution.claim_lost item=%s", self._item_id)
            return
        self.send_later()


@dataclass(frozen=True, slots=True)
class Ran(Generic[R]):
    """It ran now; ``failure`` is set where the tool returned nothing."""

    result: R
    edit: EditRecord | None
    inside: list[EditRecord]
    reconciled: ReconcileAnswer | None = None
    failure: FailureKind | None = None


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


# Verify that a claim authorizes exactly the call that this agent's model made.
#
# Nothing here trusts the gateway's answer for what to run: a claim brings the document
# that people saw, and it is compared with the call that the model made.


@dataclass(frozen=True, slots=True)
class HeldCall:
    """One call as this agent knows it; ``args`` are the model's.

    ``ask_again`` pauses until people have decided it again; None for a call that the
    policy decided: its agent never waits for people. ``recheck`` reads the business
    state that must be as people approved it. ``reading`` returns how the tool reads
    arguments that it would not run with exactly.
    """

    ref: TurnRef
    verdict: Verdict
    args: JsonObject
    ask_again: Callable[[], Answer] | None = None
    recheck: Recheck | None = None
    reading: Callable[[JsonObject], Reading | None] = lambda _: None


def authorized_args(held: HeldCall, claimed: Claimed | CheckState) -> JsonObject | None:
    """Return the arguments to run when the claim is for exactly this call."""
    try:
        document = digest.action_members(claimed.action)
        args = cast("JsonObject", document["args"])
        edit = claimed.edit
        # The message has the requested arguments, also after an edit.
        base = args if edit is None else edit.original_args
        matches = (
            digest.action_hash(claimed.action) == claimed.action_hash
            and (edit is None or edit.edited_hash == claimed.action_hash)
            and (edit is not None or _is_as_requested(held, claimed))
            and document.get("tool") == held.verdict.tool
            and _is_same_turn(document.get("ctx"), held)
            and digest.same(base, held.args)
        )
    except (BadJson, KeyError):
        return None
    return digest.in_spelling_of(held.args, args) if matches else None


async def read_state(
    held: HeldCall, asked: CheckState, shell: Shell
) -> StateNow | None:
    """Read the state for what would run; None when that is not this call."""
    args = await aside(partial(authorized_args, held, asked), [asked.action])
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


def misreading(
    held: HeldCall, claimed: Claimed, args: JsonObject, told: Reading | None
) -> Reading | None:
    """Return how the tool reads an edit that people have to see first; else None.

    Args:
        held: the call.
        claimed: the claim.
        args: the arguments that are authorized.
        told: what the gateway was told with the claim. It is told once of each edit:
            if it grants the claim anyway, the check before the run refuses the call.
    """
    if claimed.edit is None or held.ask_again is None:
        return None
    if told is not None and told.action_hash == claimed.action_hash:
        return None
    found = held.reading(args)
    return found and found.with_(action_hash=claimed.action_hash)


def _is_as_requested(held: HeldCall, claimed: Claimed | CheckState) -> bool:
    """Return whether this action was requested; its business state may differ."""
    if claimed.action_hash == held.verdict.action_hash:
        return True
    # It went back to people with another business state, which is a part of the hash.
    # Nothing else of the action may have changed.
    return digest.action_hash(claimed.requested) == held.verdict.action_hash and (
        is_same_but_state(claimed.requested, claimed.action)
    )


def _is_same_turn(ctx: object, held: HeldCall) -> bool:
    expected = {**held.ref.names, "tool_call_id": held.verdict.tool_call_id}
    # A subset: the recorded context has fields that the agent does not know.
    return isinstance(ctx, dict) and expected.items() <= ctx.items()


# Raise outages past other middleware, so that the thread waits and is tried again.
#
# LangChain's `ToolRetryMiddleware` turns any exception into a tool message after some
# tries: an outage of a minute would lose a call that people approved. What LangGraph
# raises to pause (`GraphBubbleUp`) is caught by no such middleware and no tool node, so
# an outage gets that base class, too. LangGraph then cuts off no other call of the
# step.

OUTAGES = (ThreadUnavailable, StoreUnavailable, StateUnknown, KeyRefused)
"""What a thread waits for."""


@contextmanager
def passing() -> Generator[None]:
    """Give an outage of this block the base class that only LangGraph catches."""
    try:
        yield
    except OUTAGES as error:
        # The same object: callers further out look at its text, facts and class.
        kind: Any = type(error)
        cast("Any", error).__class__ = _passing(kind)
        raise


@cache
def _passing(kind: type[Any]) -> type[Any]:
    if issubclass(kind, GraphBubbleUp):
        return kind

    def plain_class(_error: object) -> type[Any]:
        # The other class has no place where another process could look it up.
        return kind

    own: dict[str, Any] = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "plain_class": plain_class,
    }
    return type(kind.__name__, (kind, GraphBubbleUp), own)
