"""Run one call of another framework once: wait for people, claim, run, finish.

    held = HeldCall(turn.ref, verdict, call.args, reading=reads)
    report = await once(gate, held, Work(run))
    return report.in_words(str)

It is for frameworks in which a connector can wrap the call of a tool.
`keyturn.gateway.client.claiming` contains the claim and its life cycle.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar, assert_never

from keyturn.connect.gate import Gate
from keyturn.connect.kept_values import kept, recalled
from keyturn.gateway.client.bridge import AWAITING
from keyturn.gateway.client.claiming import (
    Closed,
    CutOff,
    Effect,
    End,
    HeldCall,
    NotRun,
    Ran,
    RanBefore,
    Reconciled,
    Unfinished,
    execute,
)
from keyturn.gateway.errors import (
    KeyturnError,
    NotAllowed,
    StoreUnavailable,
    ThreadUnavailable,
)
from keyturn.gateway.protocol import digest, edits, texts
from keyturn.gateway.protocol.http_api import AnswersQuestion, OpenQuestion
from keyturn.gateway.protocol.records import EditRecord, FailureKind, Result
from keyturn.gateway.protocol.run_context import inside
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    RECONCILE_INTERRUPT,
    Answer,
    AnswerKind,
    Claimed,
    ReconcileAnswer,
    VerdictKind,
)

POLL_S = 50.0
"""Longest wait of one request for people's answer, in seconds."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
"""Pauses between requests to a gateway that does not answer."""

R = TypeVar("R")
T = TypeVar("T")


class NotDecided(KeyturnError):
    """People have not decided within the caller's time limit; the call stays open.

    Attributes:
        question: the open question: a decision, or a finding about a call in doubt.
    """

    def __init__(self, question: OpenQuestion) -> None:
        super().__init__(f"People have not decided on call {question.item_id!r} yet.")
        self.question = question


@dataclass(frozen=True, slots=True)
class Permit:
    """The right to run a call; pass it on to the system that the tool changes.

    Attributes:
        item_id: the approved call; "" when the policy runs it without a record.
        idempotency_key: equal for all attempts under this authorization.
        receipt: proof for another process that executes the call; "" without keys.
        fence: number of this attempt.
    """

    item_id: str
    idempotency_key: str
    receipt: str = ""
    fence: int = 0


_permit: ContextVar[Permit | None] = ContextVar("keyturn_permit", default=None)


def permit() -> Permit:
    """Return the permit of the running tool.

    Raises:
        NotAllowed: outside of a call that a connector runs.
    """
    found = _permit.get()
    if found is None:
        raise NotAllowed("No permit: no call that Keyturn authorized is running here.")
    return found


@dataclass(frozen=True, slots=True)
class Work(Generic[R]):
    """The functions of a connector that run a call and store its return value.

    ``run`` receives the authorized arguments. ``keep`` and ``recall`` convert the
    return value to the stored result and back, for replays. ``recall`` raises
    `LookupError` for a lost value. ``raised`` is that of
    `keyturn.gateway.client.claiming.Effect`.
    """

    run: Callable[[JsonObject, Permit], Awaitable[R]]
    keep: Callable[[R], Result] = kept
    recall: Callable[[str], Any] = recalled
    raised: Callable[[BaseException], Result | Unfinished | None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Value(Generic[R]):
    """The return value of a tool."""

    is_: R


@dataclass(frozen=True, slots=True)
class CallReport(Generic[R]):
    """The report on an ended call, for the model.

    Attributes:
        value: return value of the tool, from this or an earlier attempt; or None.
        text: text instead of a value; it states whether the call ran.
        notice: text before them: the edit with its author, reason and both versions
            of the arguments, and the notes of reviewers; or "".
        is_error: the call did not run, failed, or its outcome is unknown.
        kind: the end in one word. The policy or the gateway ``refused`` the call, or
            reviewers or the time limit ``closed`` it.
        edit: the reviewers' edit.
        answer: the decision that ended the call without running it.
    """

    value: Value[R] | None = None
    text: str = ""
    notice: str = ""
    is_error: bool = False
    edit: EditRecord | None = None
    answer: Answer | None = None
    kind: Literal["ran", "failed", "refused", "closed", "unknown"] = "ran"

    def in_words(self, write: Callable[[R], str]) -> str:
        """Return the report as one text; ``write`` converts the value."""
        body = self.text if self.value is None else edits.defuse(write(self.value.is_))
        return "\n\n".join(part for part in (self.notice, body) if part)


async def once(
    gate: Gate, held: HeldCall, work: Work[R], *, limit_s: float = math.inf
) -> CallReport[R]:
    """Wait until a call is decided, and run it at most once; return a report.

    During an outage of the gateway, the call waits. A replay of the same call gets the
    recorded end. While another attempt runs the call, the replay waits.

    Args:
        gate: the gateway.
        held: the call, with the gateway's verdict; ``people`` is ignored.
        work: runs the call.
        limit_s: longest wait for people and for the gateway, in seconds.

    Raises:
        NotDecided: when people have not decided within ``limit_s``.
        ThreadUnavailable: when the gateway does not answer within ``limit_s``, or
            another attempt runs for longer; nothing ran here.
        StateUnknown: when the business state cannot be read; nothing ran.
        KeyRefused: when the gateway refuses the API key of this process.
        BaseException: an error of the tool that ``work.raised`` does not count as a
            failure, or an error of a call that the policy runs without a record.
    """
    verdict = held.verdict
    if verdict.kind is VerdictKind.DENY:
        return _refused(verdict.reason)
    if verdict.runs_unclaimed:
        context = {**held.ref.names, "tool_call_id": verdict.tool_call_id}
        key = digest.claim_key(context, verdict.args_hash)
        return CallReport(Value(await _permitted(work, held.args, Permit("", key))))
    backoff = Backoff(limit_s)
    people, why = _Waiting(gate, held, backoff), ""
    if verdict.kind is VerdictKind.HOLD:
        answer, pause = await people.decide_again(), texts.pause_text(verdict)
        if answer.type not in {AnswerKind.APPROVE, AnswerKind.EDIT}:
            return replace(_closed(answer), notice=pause)
        held = replace(held, people=people)
        why = "\n\n".join(part for part in (pause, answer.why_approved) if part)
    while True:
        try:
            end = await execute(held, gate, AWAITING, _effect(held, work))
        except ThreadUnavailable:
            # Nothing ran: the gateway does not answer, or another attempt runs.
            if not await backoff.pause():
                raise
            continue
        return _report(held, end, work, why)


@dataclass(frozen=True, slots=True)
class _Failed:
    text: str


async def _permitted(work: Work[R], args: JsonObject, given: Permit) -> R:
    with inside(_permit, given):
        return await work.run(args, given)


def _effect(held: HeldCall, work: Work[R]) -> Effect[Value[R] | _Failed]:
    async def run(claimed: Claimed, args: JsonObject) -> Value[R] | _Failed:
        key, fence = claimed.idempotency_key, claimed.fence
        given = Permit(held.item_id, key, claimed.receipt, fence)
        return Value(await _permitted(work, args, given))

    def store(end: Value[R] | _Failed) -> Result:
        if isinstance(end, Value):
            return work.keep(end.is_)
        return Result(ok=False, summary=end.text)

    return Effect(run, store, _Failed, work.raised)


class Backoff:
    """Retries requests to a gateway that does not answer, with growing pauses.

    Args:
        limit_s: time limit for all retries, in seconds.
    """

    def __init__(self, limit_s: float = math.inf) -> None:
        self._clock = asyncio.get_running_loop().time
        self._ends = self._clock() + limit_s
        self._pause_s = FIRST_PAUSE_S

    @property
    def left_s(self) -> float:
        """Return the seconds until the limit; 0 after it."""
        return max(0.0, self._ends - self._clock())

    async def pause(self) -> bool:
        """Wait before the next attempt; return False after the limit."""
        if not self.left_s:
            return False
        await asyncio.sleep(min(self._pause_s, self.left_s))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until the gateway answers.

        Raises:
            StoreUnavailable: when there is no answer within the limit.
        """
        while True:
            try:
                found = await question()
            except StoreUnavailable:
                if not await self.pause():
                    raise
            else:
                self._pause_s = FIRST_PAUSE_S
                return found


class _Waiting:
    """Waits for people's answers; see `keyturn.gateway.client.claiming.People`."""

    def __init__(self, gate: Gate, held: HeldCall, backoff: Backoff) -> None:
        self._gate, self._held, self._backoff = gate, held, backoff

    async def decide_again(self) -> Answer:
        """Wait for the decision on the call, the first or a later one."""
        return Answer.model_validate(await self._answer(APPROVAL_INTERRUPT))

    async def reconcile(self) -> ReconcileAnswer:
        """Wait for the finding about the call in doubt."""
        return ReconcileAnswer.model_validate(await self._answer(RECONCILE_INTERRUPT))

    def has_ended(self) -> None:
        """Do nothing: no finding is saved here."""

    async def _answer(
        self, kind: Literal["keyturn.approval", "keyturn.reconcile"]
    ) -> JsonObject:
        one = OpenQuestion.about(self._held.verdict, kind)
        while True:
            left_s = self._backoff.left_s
            question = AnswersQuestion(
                run=self._held.ref.run_ref,
                questions=(one,),
                wait_s=min(POLL_S, left_s),
            )
            found = await self._backoff.ask(partial(self._gate.answers, question))
            if found:
                return found[0].answer
            if not left_s:
                raise NotDecided(one)


def _report(
    held: HeldCall, end: End[Value[R] | _Failed], work: Work[R], why: str
) -> CallReport[R]:
    match end:
        case Closed():
            return _closed(end.answer)
        case NotRun():
            return _refused(end.reason)
        case CutOff():
            return CallReport(text=texts.CUT_OFF, is_error=True, kind="unknown")
        case Reconciled():
            report: CallReport[R] = CallReport(
                text=texts.reconciled_text(end.finding),
                is_error=end.finding.type != "executed",
                kind="ran" if end.finding.type == "executed" else "unknown",
            )
            notes = [""]
        case Ran() | RanBefore():
            report = _ran(end) if isinstance(end, Ran) else _before(end, work)
            note = end.reconciled and texts.reconciliation_note(end.reconciled)
            notes = [why, note or ""]
        case _:
            assert_never(end)
    edit = end.edit and edits.edit_as_spelled(end.edit, held.args)
    notice = [edits.defuse(note) for note in notes]
    notice += [texts.edit_text(edit)] if edit else []
    return replace(
        report,
        text=edits.defuse(report.text),
        notice="\n\n".join(part for part in notice if part),
        edit=edit,
    )


def _ran(end: Ran[Value[R] | _Failed]) -> CallReport[R]:
    if isinstance(end.result, Value):
        return CallReport(end.result, is_error=not end.ok)
    return failed(end.failure, end.result.text)


def _before(end: RanBefore, work: Work[R]) -> CallReport[R]:
    result = end.result
    if result.failure is not None:
        return failed(result.failure, result.summary)
    try:
        return CallReport(Value(work.recall(result.payload)), is_error=not result.ok)
    except LookupError:
        text = texts.lost_result_text(result)
        return CallReport(
            text=text,
            is_error=not result.ok,
            kind="ran" if result.ok else "unknown",
        )


def failed(failure: FailureKind | None, summary: str) -> CallReport[Any]:
    """Return the report on a call whose tool failed."""
    text = texts.failure_text(failure or FailureKind.RAISED, summary)
    return CallReport(text=text, is_error=True, kind="failed")


def _closed(answer: Answer) -> CallReport[Any]:
    text = edits.defuse(texts.ended_text(answer))
    is_error = answer.type is not AnswerKind.RESPOND
    return CallReport(text=text, is_error=is_error, answer=answer, kind="closed")


def _refused(reason: str) -> CallReport[Any]:
    text = edits.defuse(texts.denial_text(reason))
    return CallReport(text=text, is_error=True, kind="refused")
