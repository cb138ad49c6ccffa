"""Execute an authorized call at most once: claim, verify, run, record the result.

The claim precedes the effect, and the record follows it. A call that is killed in
between is in doubt: it never silently runs again. The executor waits until a reviewer
reports the outcome. A call that only the policy authorized is reported as in doubt,
without a wait.

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
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, assert_never, cast

from keyturn.gateway import tracing
from keyturn.gateway.background import begun, spawn
from keyturn.gateway.client.bridge import (
    Shell,
    ask_or_wait,
    ask_until_answered,
    ask_with_retries,
)
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import (
    FINAL_ERRORS,
    BadJson,
    KeyRefused,
    KeyturnError,
    StateUnknown,
    ThreadUnavailable,
)
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol import digest, texts
from keyturn.gateway.protocol.digest import BusinessState, is_same_but_state, state_in
from keyturn.gateway.protocol.http_api import Gateway
from keyturn.gateway.protocol.records import (
    EditOutcome,
    EditRecord,
    FailureKind,
    Reading,
    Result,
)
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
    HandedOver,
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

logger = logging.getLogger(__name__)
R = TypeVar("R")


class People(Protocol):
    """Waits for the people who decide on one call; a framework may pause instead."""

    async def decide_again(self) -> Answer:
        """Return the decision on a call that went back to reviewers."""
        ...

    async def reconcile(self) -> ReconcileAnswer:
        """Return the finding about a call in doubt."""
        ...

    def has_ended(self) -> None:
        """Note that the call ended before; earlier findings about it are obsolete."""
        ...


@dataclass(frozen=True, slots=True)
class HeldCall:
    """One call with its verdict; ``args`` are the model's.

    ``people`` is None for a call that the policy decided: it never waits. ``state``
    reads the business state for arguments; it must match the approved one. ``reading``
    returns how the tool reads arguments that it would change.
    """

    ref: TurnRef
    verdict: Verdict
    args: JsonObject
    people: People | None = None
    state: Callable[[JsonObject], Awaitable[BusinessState]] | None = None
    reading: Callable[[JsonObject], Reading | None] = lambda _: None

    @property
    def item_id(self) -> str:
        """Return the id of the call's record."""
        return self.verdict.item_id


class Unfinished(Enum):
    """An error of an executor that is no end of the call; the error is raised.

    ``NOT_BEGUN`` and ``PAUSED`` give the claim back. ``UNKNOWN`` leaves it: the call
    will be in doubt, and reviewers report its outcome.
    """

    NOT_BEGUN = auto()
    PAUSED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Effect(Generic[R]):
    """How an executor runs a claimed call, stores its result and reports a failure.

    ``run`` receives the claim and the authorized arguments. ``store`` converts the
    return value of ``run`` into the stored result. ``failure`` receives an error text;
    advice to the model is added when the message is built. ``raised`` returns what an
    error means that is to be raised: a result to record, or an unfinished call. It
    returns None for a failure of the tool.
    """

    run: Callable[[Claimed, JsonObject], Awaitable[R]]
    store: Callable[[R], Result]
    failure: Callable[[str], R]
    raised: Callable[[BaseException], Result | Unfinished | None] = lambda _: None


async def execute(
    call: HeldCall, gateway: Gateway, shell: Shell, effect: Effect[R]
) -> End[R]:
    """Execute a call that people or the policy authorized, at most once.

    Raises:
        ThreadUnavailable: the gateway is unreachable, or another owner does not finish
            in time. The answer is kept: execute the call again later.
        StateUnknown: the business state cannot be read. The answer is kept as well.
        KeyRefused: a remote gateway refuses the API key. The answer is kept as well.
        BaseException: an error that ``effect.raised`` does not take for a failure.
    """
    request = ClaimRequest(
        item_id=call.item_id,
        ref=call.ref,
        tool=call.verdict.tool,
        tool_call_id=call.verdict.tool_call_id,
        owner=uuid.uuid4().hex,
    )
    while True:
        asked_s = now_s()
        reply = await _claim_when_free(call, request, gateway, shell)
        if not isinstance(reply, Claimed):
            ended = await _end_of(call, reply)
            if ended is not None:
                return ended
            continue
        # The fence of its claim lets the end be recorded without the lease.
        claim = _Claim(call, reply, gateway, shell)
        attempt = _run_once(claim, effect, asked_s, request.reading)
        end = await shell.outliving_lease(attempt)
        if end is not None and not isinstance(end, Reading):
            return end
        # Under the old owner an unrecorded claim would be granted again. An edit that
        # the tool reads differently goes back to reviewers, with its reading.
        request = request.with_(owner=uuid.uuid4().hex, reading=end)


async def _end_of(
    call: HeldCall, reply: Done | Refused | Reopened | InDoubt
) -> RanBefore | Reconciled | CutOff | Closed | NotRun | None:
    """Return the end of a call that was not claimed; None to claim it again.

    Waits while people decide again or reconcile the call.
    """
    match reply:
        case Done():
            if call.people is not None:
                call.people.has_ended()
            if reply.reconcile_answer is not None:
                return Reconciled(reply.reconcile_answer, reply.edit)
            return RanBefore(reply.result, reply.edit, reply.reconciled)
        case Reopened() if call.people is not None:
            answer = await call.people.decide_again()
            is_again = answer.type in {AnswerKind.APPROVE, AnswerKind.EDIT}
            return None if is_again else Closed(answer)
        case Refused() | Reopened():
            return NotRun(texts.denial_text(reply.reason))
        case InDoubt():
            return await _reconcile(call, reply)
        case _:
            assert_never(reply)


async def _reconcile(call: HeldCall, reply: InDoubt) -> Reconciled | CutOff | None:
    """Wait for people to reconcile a call; None when they let the call run again."""
    if call.people is None:
        return CutOff()
    finding, edit = await call.people.reconcile(), reply.edit
    if edit is not None and finding.type == "executed":
        edit = edit.with_(outcome=EditOutcome.EXECUTED)
    return None if finding.type == "rerun" else Reconciled(finding, edit)


async def _claim_when_free(
    call: HeldCall, request: ClaimRequest, gateway: Gateway, shell: Shell
) -> Claimed | Done | InDoubt | Refused | Reopened:
    deadline = time.monotonic() + BUSY_DEADLINE_S
    while True:
        reply = await _claim(request, gateway, shell)
        if isinstance(reply, CheckState):
            state = await _state_now(call, reply)
            if state is None:
                return Refused(reason=texts.MISMATCH)
            request = request.with_(state=state)
        elif isinstance(reply, HandedOver):
            return Refused(reason=texts.HANDED_OVER)
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
    def ask() -> Coroutine[Any, Any, ClaimReply]:
        return gateway.claim(request)

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

    call: HeldCall
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
        item_id, fence = self.call.item_id, self.claimed.fence
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
        item_id = self.call.item_id
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
        item_id = self.call.item_id
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
        item_id = self.call.item_id
        return await self.gateway.finish(item_id, self.claimed.fence, result)

    async def _report(self, result: Result) -> None:
        """Report the result until the gateway has recorded it.

        A store failover takes longer than an executor waits, while this process is
        alive and has the tool's result. A report counts once, no matter how late: it
        carries the fence of its claim. If the process dies first, the doubt remains.
        """
        is_current = await ask_until_answered(partial(self._finish, result))
        told = {True: "recorded", False: "finished_late", None: "never_recorded"}
        item_id = self.call.item_id
        logger.warning("execution.%s item=%s", told[is_current], item_id)

    async def end_by_error(self, meaning: Result | Unfinished) -> None:
        """Record what an error of the executor means for the call."""
        if isinstance(meaning, Result):
            await self.finish(meaning)
        elif meaning is not Unfinished.UNKNOWN:
            await self.release(has_begun=meaning is Unfinished.PAUSED)

    async def release(self, *, has_begun: bool = False) -> None:
        """Give the claim back."""
        item_id, fence = self.call.item_id, self.claimed.fence
        try:
            await ask_with_retries(
                self.shell,
                lambda: self.gateway.release(item_id, fence, has_begun=has_begun),
            )
        except KeyturnError as error:
            # The claim then expires and becomes a doubt, which is safe.
            log_failure(logger, error, "execution.unreleased item=%s", item_id)


async def _run_once(
    claim: _Claim, effect: Effect[R], asked_s: float, sent: Reading | None
) -> Ran[R] | NotRun | Reading | None:
    """Run a claimed call.

    Returns None when the claim ended, or when reviewers decide next. Returns a reading
    when the tool would change an edit's arguments.
    """
    call, claimed = claim.call, claim.claimed
    if not await claim.is_valid(asked_s):
        return None
    args = await aside(partial(authorized_args, call, claimed), [claimed.action])
    refused: NotRun | Reading | None = None
    if args is None:
        logger.warning("execution.mismatch item=%s", call.item_id)
        refused = NotRun(texts.MISMATCH)
    elif call.state is not None and state_in(claimed.action) is None:
        # Submitted before the tool had a recheck, so there is no state to compare.
        refused = NotRun(texts.STATE_MISSING)
    else:
        refused = misreading(call, claimed, args, sent)
    if args is None or refused is not None:
        # Released now: nothing ran, and a claim that expires becomes a doubt.
        await claim.release()
        return refused
    failed: Result | None = None
    verdict = call.verdict
    told = tracing.about(
        verdict.tool, verdict.tool_call_id, verdict.tier, verdict.item_id
    )
    with claim.kept_alive(), tracing.tool_span(told, claimed.trace) as span:
        try:
            result = await effect.run(claimed, args)
        except any_failure() as error:
            if (meaning := effect.raised(error)) is not None:
                await claim.end_by_error(meaning)
                raise
            # Every error of a tool is recorded under the claim, including panics of
            # libraries: the effect may have happened. A raised error would be replayed
            # forever.
            tracing.failed(span, error)
            failed = texts.failed_result(error)
            result = effect.failure(failed.summary)
    stored = effect.store(result)
    if failed is not None:
        stored = failed.with_(payload=stored.payload)
    await claim.finish(stored)
    # The claim of the next round finds the failure and waits for people
    # (docs/decisions/0005).
    if claimed.asks_on_failure and not stored.ok:
        return None
    edit = claimed.edit and claimed.edit.with_(outcome=stored.edit_outcome)
    return Ran(
        result,
        edit,
        reconciled=claimed.reconciled,
        failure=stored.failure,
        ok=stored.ok,
    )


@dataclass(frozen=True, slots=True)
class Ran(Generic[R]):
    """The call ran now; ``failure`` is set if the tool returned nothing.

    ``ok`` is False if the tool reported a failure. ``inside`` are edits of calls that
    an agent inside the tool made.
    """

    result: R
    edit: EditRecord | None
    inside: list[EditRecord] = field(default_factory=list[EditRecord])
    reconciled: ReconcileAnswer | None = None
    failure: FailureKind | None = None
    ok: bool = True


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


End = Ran[R] | RanBefore | Reconciled | CutOff | Closed | NotRun
"""The ways in which a call ends."""


# Verify that a claim authorizes exactly the call that this agent's model made.
#
# A claim contains the document that reviewers saw. It is compared with the model's
# call; the gateway's answer is not trusted.


def authorized_args(call: HeldCall, claimed: Claimed | CheckState) -> JsonObject | None:
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
            and (edit is not None or _is_as_requested(call, claimed))
            and document.get("tool") == call.verdict.tool
            and _is_same_turn(document.get("ctx"), call)
            and digest.same(base, call.args)
        )
    except (BadJson, KeyError):
        return None
    return digest.in_spelling_of(call.args, args) if matches else None


async def _state_now(call: HeldCall, asked: CheckState) -> StateNow | None:
    """Read the business state for the claimed action; None if it is not this call."""
    args = await aside(partial(authorized_args, call, asked), [asked.action])
    if args is None:
        logger.warning("execution.mismatch item=%s", call.item_id)
        return None
    if call.state is None:
        raise StateUnknown(
            f"The tool {call.verdict.tool!r} has no recheck here, but the approval is "
            "for one business state. The call did not run; give the tool its recheck "
            "again."
        )
    return StateNow(action_hash=asked.action_hash, state=await call.state(args))


def misreading(
    call: HeldCall, claimed: Claimed, args: JsonObject, sent: Reading | None
) -> Reading | None:
    """Return how the tool reads an edit that reviewers must see first; else None.

    Args:
        call: the call.
        claimed: the claim.
        args: the authorized arguments.
        sent: the reading that was sent with the claim. Each edit's reading is sent
            once: if the gateway grants the claim anyway, the check before the run
            refuses the call.
    """
    if claimed.edit is None or call.people is None:
        return None
    if sent is not None and sent.action_hash == claimed.action_hash:
        return None
    found = call.reading(args)
    return found and found.with_(action_hash=claimed.action_hash)


def _is_as_requested(call: HeldCall, claimed: Claimed | CheckState) -> bool:
    """Return True if this action was requested; its business state may differ."""
    if claimed.action_hash == call.verdict.action_hash:
        return True
    # The call went back to reviewers with another business state, which is part of the
    # hash. The rest of the action must be unchanged.
    return digest.action_hash(claimed.requested) == call.verdict.action_hash and (
        is_same_but_state(claimed.requested, claimed.action)
    )


def _is_same_turn(ctx: object, call: HeldCall) -> bool:
    expected = {**call.ref.names, "tool_call_id": call.verdict.tool_call_id}
    # A subset: the recorded context also has fields that the agent does not set.
    return isinstance(ctx, dict) and expected.items() <= ctx.items()
