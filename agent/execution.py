"""Execute an authorized call at most once: claim, verify, run, record the result.

The claim precedes the effect, and the record follows it. A call that is killed in
between is in doubt: it never silently runs again. The agent waits until a reviewer
reports the outcome. A call that only the policy authorized is reported as in doubt,
without a pause.

The arguments come from the gateway's record, never from an answer or from the agent's
state. The recorded document is verified against this call and then run: the same JSON,
with the order and number types of the call where the values are equal.
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

from keyturn.agent import bridge, grants, messages
from keyturn.agent.bridge import Shell, ask_or_wait, ask_with_retries
from keyturn.agent.grants import Grant, Recheck, contained, grant_scope
from keyturn.agent.interrupts import drop_findings, request_reconciliation
from keyturn.agent.turns import collect_edits
from keyturn.gateway.background import begun, spawn
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import (
    FINAL_ERRORS,
    BadJson,
    KeyRefused,
    KeyturnError,
    StateUnknown,
    StoreUnavailable,
    ThreadUnavailable,
)
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol import digest, wire
from keyturn.gateway.protocol.digest import is_same_but_state, state_in
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
"""How long to wait for another live owner before the run fails and is resumed later."""

BEATS = 3
"""Heartbeats in the lease of a claim, so one of them may fail."""

GIVE_BACK_S = 2.0
"""How long a cancelled attempt waits for the release of its claim."""

HANDED_OFF = Result(ok=True, summary="Handed off to the parent graph.")

logger = logging.getLogger(__name__)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Work(Generic[R]):
    """How an executor runs a call, stores its result and reports a failure.

    ``run`` receives the authorized arguments. ``store`` converts the return value of
    ``run``, and the edits made inside it, into the stored result. ``failure`` receives
    an error text; advice to the model is added when the message is built.
    """

    run: Callable[[JsonObject], Awaitable[R]]
    store: Callable[[R, list[EditRecord]], Result]
    failure: Callable[[str], R]


async def execute(
    held: HeldCall, gateway: Gateway, shell: Shell, work: Work[R]
) -> Ran[R] | RanBefore | Reconciled | CutOff | Closed | NotRun:
    """Execute a call that people or the policy authorized, at most once.

    Raises:
        ThreadUnavailable: the gateway is unreachable, or another owner does not finish
            in time. The answer is kept: resume the thread again later.
        StateUnknown: the business state cannot be read. The answer is kept as well.
        KeyRefused: a remote gateway refuses the API key. The answer is kept as well.
        GraphBubbleUp: a call inside the tool pauses; the claim is released.
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
        if not isinstance(reply, Claimed):
            ended = _end_of(held, reply)
            if ended is not None:
                return ended
            continue
        # The fence of its claim lets the end be recorded without the lease.
        claim = _Claim(held, reply, gateway, shell)
        attempt = _run_once(claim, work, asked_s, request.reading)
        end = await shell.outliving_lease(attempt)
        if end is not None and not isinstance(end, Reading):
            return end
        # Under the old owner an unrecorded claim would be granted again. An edit that
        # the tool reads differently goes back to reviewers, with its reading.
        request = request.with_(owner=uuid.uuid4().hex, reading=end)


def _end_of(
    held: HeldCall, reply: Done | Refused | Reopened | InDoubt
) -> RanBefore | Reconciled | CutOff | Closed | NotRun | None:
    """Return the end of a call that was not claimed; None to claim it again.

    Pauses while people decide again or reconcile the call.
    """
    match reply:
        case Done():
            drop_findings(held.verdict)
            if reply.reconcile_answer is not None:
                return Reconciled(reply.reconcile_answer, reply.edit)
            return RanBefore(reply.result, reply.edit, reply.reconciled)
        case Reopened() if held.ask_again is not None:
            answer = held.ask_again()
            is_again = answer.type in {AnswerKind.APPROVE, AnswerKind.EDIT}
            return None if is_again else Closed(answer)
        case Refused() | Reopened():
            return NotRun(messages.denial_text(reply.reason))
        case InDoubt():
            return _reconcile(held, reply)
        case _:
            assert_never(reply)


def _reconcile(held: HeldCall, reply: InDoubt) -> Reconciled | CutOff | None:
    """Wait for people to reconcile a call; None when they let the call run again."""
    if held.ask_again is None:
        return CutOff()
    finding, edit = request_reconciliation(held.verdict), reply.edit
    if edit is not None and finding.type == "executed":
        edit = edit.with_(outcome=EditOutcome.EXECUTED)
    return None if finding.type == "rerun" else Reconciled(finding, edit)


async def _claim_when_free(
    held: HeldCall, request: ClaimRequest, gateway: Gateway, shell: Shell
) -> Claimed | Done | InDoubt | Refused | Reopened:
    deadline = time.monotonic() + BUSY_DEADLINE_S
    while True:
        reply = await _claim(request, gateway, shell)
        if isinstance(reply, CheckState):
            state = await read_state(held, reply, shell)
            if state is None:
                return Refused(reason=messages.MISMATCH)
            request = request.with_(state=state)
        elif not isinstance(reply, Busy):
            return reply
        # Also after `CheckState`: a state that changes at each read would loop forever.
        if time.monotonic() >= deadline:
            raise ThreadUnavailable(
                f"Item {request.item_id!r} is still being executed elsewhere after "
                f"{BUSY_DEADLINE_S:.0f} s; resume the thread again later."
            )
        if isinstance(reply, Busy):
            await shell.sleep(max(reply.retry_after_s, 0.01))


async def _claim(request: ClaimRequest, gateway: Gateway, shell: Shell) -> ClaimReply:
    # One write id: if the answer is lost, only this attempt is granted the claim again.
    write = dict[str, str]()

    async def ask() -> ClaimReply:
        with one_write(write):
            return await gateway.claim(request)

    try:
        return await ask_or_wait(shell, ask, f"item {request.item_id!r}")
    except asyncio.CancelledError:
        # The claim may still be granted. Unused, it would expire and leave a doubt that
        # people must resolve.
        giving_back = begun(_give_back(request.item_id, ask, gateway, shell))
        await asyncio.wait([giving_back], timeout=GIVE_BACK_S)
        raise
    except KeyRefused:
        # Not a refusal of this call: it may run once the process has a valid key.
        raise
    except FINAL_ERRORS as error:
        return Refused(reason=str(error))


async def _give_back(
    item_id: str,
    ask: Callable[[], Coroutine[Any, Any, ClaimReply]],
    gateway: Gateway,
    shell: Shell,
) -> None:
    """Release a claim whose requester was cancelled."""
    # The same attempt asks again and runs nothing: the reply has the fence of its
    # grant.
    reply = await ask_with_retries(shell, ask)
    if isinstance(reply, Claimed):
        fence = reply.fence
        await ask_with_retries(
            shell, lambda: gateway.release(item_id, fence, has_begun=False)
        )


@dataclass(frozen=True, slots=True)
class _Claim:
    """A granted claim; the gateway knows it by the item and its fence."""

    held: HeldCall
    claimed: Claimed
    gateway: Gateway
    shell: Shell

    async def is_valid(self, asked_s: float) -> bool:
        """Return True if the claim, requested at ``asked_s``, is still valid.

        It may have expired while this process was paused or another tool blocked its
        event loop. Reviewers are then asked about the outcome, and may allow another
        attempt.

        Raises:
            ThreadUnavailable: when the gateway does not answer; nothing ran.
        """
        if now_s() - asked_s < self.claimed.lease_s / 2:
            return True
        item_id, fence = self.held.verdict.item_id, self.claimed.fence
        is_current = await ask_or_wait(
            self.shell,
            lambda: self.gateway.heartbeat(item_id, fence),
            f"item {item_id!r}",
        )
        if not is_current:
            logger.warning("execution.claim_lost item=%s", item_id)
        return is_current

    @contextmanager
    def kept_alive(self) -> Generator[None]:
        """Send heartbeats from the background loop while the block runs."""
        beating = spawn(self._beat())
        try:
            yield
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        item_id = self.held.verdict.item_id
        while True:
            await asyncio.sleep(self.claimed.lease_s / BEATS)
            try:
                if await self.gateway.heartbeat(item_id, self.claimed.fence):
                    continue
            except (KeyturnError, OSError):
                # Retried: the gateway may be back before the lease ends.
                logger.warning("execution.heartbeat_failed item=%s", item_id)
                continue
            # The gateway has marked the call in doubt, but a running tool cannot be
            # stopped. Its result is still recorded, as a late report.
            logger.warning("execution.claim_lost item=%s", item_id)
            return

    async def finish(self, result: Result) -> None:
        """Record the result; if the gateway is unreachable, in the background."""
        item_id = self.held.verdict.item_id
        try:
            is_current = await ask_with_retries(
                self.shell, partial(self._finish, result)
            )
        except asyncio.CancelledError:
            # For example, the lease on the thread ends during an outage. The tool has
            # run; without a report, reviewers would be asked whether it did.
            self.shell.begin(self._report(result))
            raise
        except KeyturnError as error:
            # Not raised: the tool has run, and the model must read its result. A second
            # run would be worse than a missing record.
            log_failure(logger, error, "execution.unrecorded item=%s", item_id)
            if isinstance(error, KeyRefused) or not isinstance(error, FINAL_ERRORS):
                self.shell.begin(self._report(result))
            return
        if not is_current:
            logger.warning("execution.finished_late item=%s", item_id)

    async def _finish(self, result: Result) -> bool:
        item_id = self.held.verdict.item_id
        return await self.gateway.finish(item_id, self.claimed.fence, result)

    async def _report(self, result: Result) -> None:
        """Report the result until the gateway has recorded it.

        A store failover takes longer than an executor waits, while this process is
        alive and has the tool's result. A report counts once, no matter how late: it
        carries the fence of its claim. If the process dies first, the doubt remains.
        """
        is_current = await bridge.ask_until_answered(partial(self._finish, result))
        told = {True: "recorded", False: "finished_late", None: "never_recorded"}
        item_id = self.held.verdict.item_id
        logger.warning("execution.%s item=%s", told[is_current], item_id)

    async def release(self, *, has_begun: bool = False) -> None:
        """Give the claim back."""
        item_id, fence = self.held.verdict.item_id, self.claimed.fence
        try:
            await ask_with_retries(
                self.shell,
                lambda: self.gateway.release(item_id, fence, has_begun=has_begun),
            )
        except KeyturnError as error:
            # The claim then expires and becomes a doubt, which is safe.
            log_failure(logger, error, "execution.unreleased item=%s", item_id)


async def _run_once(
    claim: _Claim, work: Work[R], asked_s: float, sent: Reading | None
) -> Ran[R] | NotRun | Reading | None:
    """Run a claimed call.

    Returns None when the claim ended, or when reviewers decide next. Returns a reading
    when the tool would change an edit's arguments.
    """
    held, claimed = claim.held, claim.claimed
    if not await claim.is_valid(asked_s):
        return None
    args = await aside(partial(authorized_args, held, claimed), [claimed.action])
    refused: NotRun | Reading | None = None
    if args is None:
        logger.warning("execution.mismatch item=%s", held.verdict.item_id)
        refused = NotRun(messages.MISMATCH)
    elif held.recheck is not None and state_in(claimed.action) is None:
        # Submitted before the tool had a recheck, so there is no state to compare.
        refused = NotRun(grants.STATE_MISSING)
    else:
        refused = misreading(held, claimed, args, sent)
    if args is None or refused is not None:
        # Released now: nothing ran, and a claim that expires becomes a doubt.
        await claim.release()
        return refused
    grant = Grant(
        item_id=held.verdict.item_id,
        idempotency_key=claimed.idempotency_key,
        action_hash=claimed.action_hash,
        tool=held.verdict.tool,
        args_hash=wire.args_hash(args),
        receipt=claimed.receipt,
    )
    failed: Result | None = None
    inside = collect_edits(held.ref.run_ref)
    with inside as edits, grant_scope(grant), claim.kept_alive():
        try:
            with contained():
                result = await work.run(args)
        except ParentCommand:
            # Not a pause: the tool is done and hands off to the parent graph.
            await claim.finish(HANDED_OFF)
            raise
        except any_failure() as error:
            # An outage of a nested agent passes tool nodes like a pause. But this tool
            # has begun, and must not run again.
            is_outage = isinstance(error, OUTAGES)
            is_pause = isinstance(error, GraphBubbleUp) and not is_outage
            if is_pause or is_invalid_resume(error):
                # The tool pauses, or its own interrupt refused an answer: not a
                # failure.
                await claim.release(has_begun=True)
                raise
            # Every error of a tool is recorded under the claim, including panics of
            # libraries: the effect may have happened. A raised error would be replayed
            # forever.
            failed = messages.failed_result(error)
            result = work.failure(failed.summary)
    stored = work.store(result, edits)
    if failed is not None:
        stored = failed.with_(payload=stored.payload)
    await claim.finish(stored)
    # The claim of the next round finds the failure and waits for people
    # (docs/decisions/0005).
    if claimed.asks_on_failure and not stored.ok:
        return None
    edit = claimed.edit and claimed.edit.with_(outcome=stored.edit_outcome)
    return Ran(result, edit, edits, claimed.reconciled, stored.failure)


@dataclass(frozen=True, slots=True)
class Ran(Generic[R]):
    """The call ran now; ``failure`` is set if the tool returned nothing."""

    result: R
    edit: EditRecord | None
    inside: list[EditRecord]
    reconciled: ReconcileAnswer | None = None
    failure: FailureKind | None = None


@dataclass(frozen=True, slots=True)
class RanBefore:
    """The call ran before; ``result`` is the stored result.

    ``reconciled`` is the reviewers' finding, here and in `Ran`.
    """

    result: Result
    edit: EditRecord | None
    reconciled: ReconcileAnswer | None = None


@dataclass(frozen=True, slots=True)
class NotRun:
    """The call does not run; ``reason`` is a text for the model."""

    reason: str


@dataclass(frozen=True, slots=True)
class CutOff:
    """The call was cut off while it ran, and the agent does not wait for a finding."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The call went back to reviewers, who closed it; ``answer`` is their decision."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The call was cut off while it ran, and a reviewer reconciled it."""

    finding: ReconcileAnswer
    edit: EditRecord | None = None


# Verify that a claim authorizes exactly the call that this agent's model made.
#
# A claim contains the document that reviewers saw. It is compared with the model's
# call; the gateway's answer is not trusted.


@dataclass(frozen=True, slots=True)
class HeldCall:
    """One call from the agent's side; ``args`` are the model's.

    ``ask_again`` pauses until reviewers have decided again. It is None for a call that
    the policy decided: that agent never waits for people. ``recheck`` reads the
    business state that must match the approved one. ``reading`` returns how the tool
    reads arguments that it would change.
    """

    ref: TurnRef
    verdict: Verdict
    args: JsonObject
    ask_again: Callable[[], Answer] | None = None
    recheck: Recheck | None = None
    reading: Callable[[JsonObject], Reading | None] = lambda _: None


def authorized_args(held: HeldCall, claimed: Claimed | CheckState) -> JsonObject | None:
    """Return the arguments to run; None if the claim is not for exactly this call."""
    try:
        document = digest.action_members(claimed.action)
        args = cast("JsonObject", document["args"])
        edit = claimed.edit
        # The message has the requested arguments, even after an edit.
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
    """Read the business state for the claimed action; None if it is not this call."""
    args = await aside(partial(authorized_args, held, asked), [asked.action])
    if args is None:
        logger.warning("execution.mismatch item=%s", held.verdict.item_id)
        return None
    if held.recheck is None:
        raise StateUnknown(
            f"The tool {held.verdict.tool!r} has no recheck here, but the approval is "
            "for one business state. The call did not run; give the tool its recheck "
            "again."
        )
    state = await grants.read(shell, held.recheck, held.verdict.tool, args)
    return StateNow(action_hash=asked.action_hash, state=state)


def misreading(
    held: HeldCall, claimed: Claimed, args: JsonObject, sent: Reading | None
) -> Reading | None:
    """Return how the tool reads an edit that reviewers must see first; else None.

    Args:
        held: the call.
        claimed: the claim.
        args: the authorized arguments.
        sent: the reading that was sent with the claim. Each edit's reading is sent
            once: if the gateway grants the claim anyway, the check before the run
            refuses the call.
    """
    if claimed.edit is None or held.ask_again is None:
        return None
    if sent is not None and sent.action_hash == claimed.action_hash:
        return None
    found = held.reading(args)
    return found and found.with_(action_hash=claimed.action_hash)


def _is_as_requested(held: HeldCall, claimed: Claimed | CheckState) -> bool:
    """Return True if this action was requested; its business state may differ."""
    if claimed.action_hash == held.verdict.action_hash:
        return True
    # The call went back to reviewers with another business state, which is part of the
    # hash. The rest of the action must be unchanged.
    return digest.action_hash(claimed.requested) == held.verdict.action_hash and (
        is_same_but_state(claimed.requested, claimed.action)
    )


def _is_same_turn(ctx: object, held: HeldCall) -> bool:
    expected = {**held.ref.names, "tool_call_id": held.verdict.tool_call_id}
    # A subset: the recorded context also has fields that the agent does not set.
    return isinstance(ctx, dict) and expected.items() <= ctx.items()


# Raise outages past other middleware, so that the thread waits and is tried again.
#
# LangChain's `ToolRetryMiddleware` turns any exception into a tool message after a few
# tries: an outage of a minute would lose an approved call. Neither middleware nor tool
# nodes catch `GraphBubbleUp`, which LangGraph raises to pause. An outage therefore gets
# that base class, too. LangGraph then lets the other calls of the step finish.

OUTAGES = (ThreadUnavailable, StoreUnavailable, StateUnknown, KeyRefused)
"""Errors that a thread waits out."""


@contextmanager
def passing() -> Generator[None]:
    """Give an outage in this block the base class that only LangGraph catches."""
    try:
        yield
    except OUTAGES as error:
        # The same object: outer callers inspect its text, facts and class.
        kind: Any = type(error)
        cast("Any", error).__class__ = _passing(kind)
        raise


@cache
def _passing(kind: type[Any]) -> type[Any]:
    if issubclass(kind, GraphBubbleUp):
        return kind

    def plain_class(_error: object) -> type[Any]:
        # Another process cannot import the generated class.
        return kind

    own: dict[str, Any] = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "plain_class": plain_class,
    }
    return type(kind.__name__, (kind, GraphBubbleUp), own)
