"""Return what a call came to, as its agent is told: result, findings, late report."""

from __future__ import annotations

from twokey.gateway.approvals.record import Item
from twokey.gateway.approvals.resume_value import answer_for, unknown_answer
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.verbs import Finding
from twokey.gateway.protocol.wire import (
    CallOutcome,
    FindingWord,
    LateReport,
    ReconcileAnswer,
)
from twokey.gateway.service.proven_words import NOT_TOLD


def reconcile_answer(item: Item, word: FindingWord) -> ReconcileAnswer:
    """Return what people found out about an execution in doubt, with their notes."""
    # Not `observations_now`: after "run it again" the fence rises with the next start,
    # and what people found is about the start before.
    latest = max((one.fence for one in item.observations), default=0)
    seen = [one for one in item.observations if one.fence == latest]
    return ReconcileAnswer(
        type=word,
        item_id=item.id,
        action_hash=digest.action_hash(item.requested),
        message=" / ".join(one.note for one in seen if one.note),
        by=seen[-1].by if seen else None,
    )


def found_by_people(item: Item) -> ReconcileAnswer | None:
    """Return what people found out, unless the executor's own result is to be read."""
    result = item.result
    if item.finding is Finding.EXECUTED and not (result and result.ok):
        return reconcile_answer(item, "executed")
    if item.finding is Finding.SKIP and result is None:
        return reconcile_answer(item, "skip")
    return None


def last_finding(item: Item) -> ReconcileAnswer | None:
    """Return what people found at the last reconciliation; None without one."""
    if item.finding is None:
        return None
    return reconcile_answer(item, item.finding.value)


def late_report(item: Item) -> LateReport | None:
    """Return what was reported after people had reconciled the call, or None."""
    if item.late_result is None or item.finding is None:
        return None
    began_again = item.finding is Finding.RERUN and not item.observations_now
    return LateReport(
        item_id=item.id,
        tool_call_id=item.ctx.tool_call_id,
        ok=item.late_result.ok,
        summary=item.late_result.summary,
        is_apart=began_again,
    )


def outcome_of(item: Item) -> CallOutcome:
    """Return the outcome of a held call, for repairing a turn that was cut off."""
    return CallOutcome(
        item_id=item.id,
        tool_call_id=item.ctx.tool_call_id,
        tool=item.tool,
        state=item.state,
        answer=answer_for(item),
        edit=item.edit,
        result=item.result,
        reconcile_answer=found_by_people(item),
        reconciled=last_finding(item),
    )


def unproven_outcome(item: Item) -> CallOutcome:
    """Return the outcome of a call of which the record says what nobody has proven."""
    return CallOutcome(
        item_id=item.id,
        tool_call_id=item.ctx.tool_call_id,
        tool=item.tool,
        state=item.state,
        answer=unknown_answer(item.id, digest.action_hash(item.requested), NOT_TOLD),
    )


def requested_before(item: Item) -> str:
    """Return the document of the request when only its state has changed."""
    has_changed = item.edit is None and item.action != item.requested
    return item.requested if has_changed else ""
