"""Sentences that a model reads about its calls, the same in every adapter.

Every text states whether the call ran: a model that has to guess repeats the call.
Text from people is quoted as JSON, so that it cannot end the sentence.
"""

from __future__ import annotations

import json
from typing import Literal

from keyturn.gateway.errors import NotAllowed, NotStarted
from keyturn.gateway.protocol import edits
from keyturn.gateway.protocol.records import (
    EditRecord,
    FailureKind,
    ItemState,
    Person,
    Result,
)
from keyturn.gateway.protocol.strict_json import printable
from keyturn.gateway.protocol.wire import (
    Answer,
    AnswerKind,
    LateReport,
    ReconcileAnswer,
    Verdict,
)

NOT_AGAIN = "Do not make the same call again."
UNKNOWN_EFFECT = (
    "Whether it took effect is unknown. Do not repeat it; tell the user that it has "
    "to be checked."
)
RESULT_LOST = (
    "This call ran and took effect, but its output was lost. Do not repeat it; tell "
    "the user that it is done."
)
UNKNOWN_RESULT = f"This call was started and did not end well. {UNKNOWN_EFFECT}"
CUT_OFF = (
    "This call was cut off while it ran, so whether it took effect is unknown. If it "
    "only reads, make it again; otherwise do not repeat it, and tell the user that it "
    "has to be checked."
)
INTERRUPTED = (
    "This call was cut off when the conversation moved on, and its result is lost. "
    f"It may have run. {UNKNOWN_EFFECT}"
)
HANDED_OVER = (
    "The decision on this call was handed to another program, which runs it by itself. "
    "So it does not run here."
)
NO_VERDICT = (
    "This call was not cleared by the approval gateway, so it did not run. Do not make "
    "the same call again: it would be refused again. Tell the user."
)
DENIED = f"So this call did not run. {NOT_AGAIN} Tell the user."
MISMATCH = (
    "The authorized action differs from this call, so the call did not run. "
    f"{NOT_AGAIN} Tell the user."
)
NOT_ALONE = (
    "This call was started in one task with others, where approvals cannot be told "
    "apart, so it did not run. Make it again as a single call."
)

STATE_UNREADABLE = (
    "The state that this call depends on could not be read, so no approval was "
    "requested and it did not run. Tell the user; it can be tried again later."
)
STATE_MISSING = (
    "This call was submitted without the state that its tool depends on, so it did "
    "not run. If it is still wanted, make it again as a new call."
)

MOVED_ON = "The conversation moved on before this call ran, so it did not run."
STARTED = f"This call had been started when the conversation moved on. {UNKNOWN_EFFECT}"


def edit_text(record: EditRecord, advice: str = "") -> str:
    """Return the model's text about an edit; forged marks in values are neutralized.

    ``advice`` replaces the last sentences, for a caller that cannot see what ran.
    """
    return _defused(edits.EDIT_MARK, edits.edit_text(record, advice))


def unconfirmed_edit_text(record: EditRecord) -> str:
    """Return the text about an edit without a record at the gateway."""
    return _defused(edits.UNCONFIRMED_MARK, edits.unconfirmed_edit_text(record))


def _defused(mark: str, text: str) -> str:
    return mark + edits.defuse(text.removeprefix(mark))


def nested_edit_text(record: EditRecord, text: str = "") -> str:
    """Return the edit text for the result of a tool in which another agent acted."""
    body = text or edit_text(record)
    return f"Inside this tool, about a call of {record.tool!r}: {body}"


def detached_edit_text(record: EditRecord, text: str = "") -> str:
    """Return the edit text for a message other than the result of its call."""
    return (
        "(Note by the approval gateway, not by the user, about an earlier call of "
        f"{record.tool!r}: {text or edit_text(record)})"
    )


def question_status(answer: Answer) -> Literal["answered", "cancelled"]:
    """Return the status of the questions of a call."""
    return "answered" if answer.type is AnswerKind.RESPOND else "cancelled"


def _question_text(answer: Answer) -> str:
    """Return the transcript of answered questions, or why there are no answers."""
    if answer.type is AnswerKind.RESPOND:
        return answer.message
    text = answer.message
    if answer.by is not None:
        why = f" Their reason: {_quoted(text)}." if text else ""
        text = f"{_name(answer.by)} chose not to answer.{why}"
    return f"{text}\n\nDo not ask the same again. Continue without it if you can."


def denial_text(reason: str) -> str:
    """Return the message about a refusal by policy or by the gateway."""
    return reason.strip() or f"This call was refused and did not run. {NOT_AGAIN}"


def pause_text(verdict: Verdict) -> str:
    """Return the request to an agent that floods people; "" for other agents."""
    if not verdict.retry_after_s:
        return ""
    return (
        # The model may read it only after the decision, when fewer calls wait.
        "You asked for more approvals than people can review: when you made this call, "
        f"{verdict.waiting} of your calls waited. Before you ask for more, wait "
        f"{verdict.retry_after_s / 60:.0f} minutes, or combine several calls into one."
    )


def ended_text(answer: Answer) -> str:
    """Return the message about a call that ended without running."""
    if answer.is_question:
        return _question_text(answer)
    who = _name(answer.by)
    ran = "did not run"
    if answer.has_started:
        ran = "was stopped; its effects up to then remain"
    if answer.type is AnswerKind.REJECT:
        why = f"Their reason: {_quoted(answer.message)}." if answer.message else ""
        why = why or "They gave no reason."
        return (
            f"{who} rejected this call, so it {ran}. {why} {NOT_AGAIN} Tell "
            "the user, and continue only in a way that respects this decision."
        )
    if answer.type is AnswerKind.RESPOND:
        return (
            f"This call {ran}. {who} answered it instead: "
            f"{_quoted(answer.message)}. Take this as the answer. {NOT_AGAIN}"
        )
    reason = answer.message or "This call did not run."
    return f"{reason} {NOT_AGAIN} Tell the user, who may ask for it again."


def lost_result_text(result: Result) -> str:
    """Return the message about a result that cannot be returned."""
    return RESULT_LOST if result.ok else UNKNOWN_RESULT


def reconciled_text(answer: ReconcileAnswer) -> str:
    """Return the message with a reviewer's finding about a call in doubt."""
    if answer.by is None and answer.message:
        return f"This call was cut off or failed. {answer.message} {UNKNOWN_EFFECT}"
    note = f" Their note: {_quoted(answer.message)}." if answer.message else ""
    who = _name(answer.by)
    if answer.type == "executed":
        return (
            f"This call was cut off or failed. {who} checked and confirmed that it "
            f"took effect; its output is lost.{note} Do not repeat it."
        )
    return (
        f"This call was cut off or failed, and {who} decided to skip it.{note} "
        "Treat it as not done, although it may have taken effect. Do not repeat it; "
        "tell the user."
    )


def reconciliation_note(answer: ReconcileAnswer) -> str:
    """Return the reviewer's note on a reconciled call; "" without one."""
    if not answer.message:
        return ""
    return (
        f"{_name(answer.by)} reconciled this call, which was cut off or had failed. "
        f"Their note: {_quoted(answer.message)}."
    )


def late_report_text(report: LateReport) -> str:
    """Return the message about a report that arrived after the reconciliation."""
    outcome = "it ran and took effect" if report.ok else "it failed"
    about = "an earlier attempt at this call" if report.is_apart else "this call"
    means = "So it took effect twice" if report.is_apart else "This report counts now"
    summary = report.summary[:500]
    quoted = f" Its report: {_quoted(summary)}." if summary else ""
    return (
        f"A late report about {about}: after people had reconciled it, its worker "
        f"reported that {outcome}.{quoted} {means}, even if the result below differs. "
        "Do not repeat the call; tell the user."
    )


def failed_result(error: BaseException) -> Result:
    """Return the result of a tool that raised, with a text for people.

    A tool may have had an effect before another tool inside it was refused, so only
    `NotStarted` proves that nothing ran.
    """
    if isinstance(error, NotStarted):
        kind, text = FailureKind.NOT_STARTED, str(error)
    else:
        is_refused = isinstance(error, NotAllowed)
        kind = FailureKind.REFUSED if is_refused else FailureKind.RAISED
        text = f"{type(error).__name__}: {error}"
    return Result(ok=False, summary=printable(text[:500]), failure=kind)


def failure_text(kind: FailureKind, said: str) -> str:
    """Return the message about a failure: its reason, then the advice to the model."""
    if kind is FailureKind.NOT_STARTED:
        return f"{said} {NOT_AGAIN} Tell the user."
    return f"The tool failed: {_quoted(said)}. {UNKNOWN_EFFECT}"


def cut_off_text(state: ItemState) -> str:
    """Return the message about a held call whose turn new input interrupted."""
    if state in {ItemState.PENDING, ItemState.AUTHORIZED}:
        return MOVED_ON
    is_open = state in {ItemState.EXECUTING, ItemState.IN_DOUBT}
    return STARTED if is_open else RESULT_LOST


def _name(by: Person | None) -> str:
    if by is None or not by.user:
        return "A reviewer"
    return f"A reviewer ({_quoted(by.name or by.user)})"


def _quoted(text: str) -> str:
    return json.dumps(printable(text), ensure_ascii=False)
