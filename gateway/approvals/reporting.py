"""Report a notify-tier call: record a person's remark and undo nothing."""

from __future__ import annotations

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.approvals.events import EventName, approval_event
from keyturn.gateway.approvals.record import Approval, Remark


def add_report(
    approval: Approval, reporter: Reviewer, text: str, now_ms: int
) -> Change | None:
    """Add somebody's remark to an approval; None when they reported it before."""
    by = reporter.person
    # One remark a person, so that a click sent twice is told once.
    if any(one.by.is_same(by) for one in approval.remarks):
        return None
    remarks = (*approval.remarks, Remark(by=by, text=text, at_ms=now_ms))
    event = approval_event(approval, EventName.APPROVAL_REPORTED, reason=text)
    after = approval.with_(remarks=remarks, rev=approval.rev + 1)
    gesture = {"gesture": reporter.gesture.value}
    reported = event.with_(actor=f"{by.team}/{by.user}", data=gesture)
    return Change(after, (reported,))
