"""Ask the requester about a waiting call, record their reply, or record a report.

These changes decide nothing: the calls wait on, with the same deadline and the same
people, and a report of a call that ran undoes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deadline_changes import refusal
from keyturn.gateway.approvals.decisions import (
    Expired,
    Forbidden,
    Gesture,
    Refusal,
    Reviewer,
    Stale,
)
from keyturn.gateway.approvals.events import EventName, approval_event
from keyturn.gateway.approvals.record import Approval, Inquiry, Remark
from keyturn.gateway.approvals.timing import is_over, next_end_ms
from keyturn.gateway.protocol.records import Person

MAX_QUESTION = 1_000
"""Longest question, in characters."""

MAX_REPLY = 3_000
"""Longest reply, in characters."""

MOST_QUESTIONS = 10
MOST_REPLIES = 20
"""Maximum number of each in an approval."""

REPLY_TS = "reply_ts"
"""Key in the data of a reply: its Slack message."""

_NOBODY = Forbidden(reason="The requester is not known.")
_NOT_YOURS = Forbidden(reason="Only the requester can reply.")
_ENOUGH = Forbidden(
    reason=f"The requester was asked {MOST_QUESTIONS} questions already. Please decide "
    "with the answers so far, or let the request expire."
)
_FULL = Forbidden(
    reason=f"This card keeps {MOST_REPLIES} replies, and has them. Please talk to the "
    "reviewers directly."
)


def has_requester(approval: Approval) -> bool:
    """Return True if an approval's calls have a requester to ask."""
    # An agent's question already goes to the requester, and a standing approval was
    # proposed by a reviewer.
    is_of_calls = not (approval.is_question or approval.is_standing)
    return is_of_calls and approval.requester is not None


def takes_reply(approval: Approval, person: Person) -> bool:
    """Return True if this person's message under the card is a reply to reviewers."""
    requester = approval.requester
    was_asked = requester is not None and requester.is_same(person)
    return was_asked and bool(approval.inquiries)


def unanswered(inquiries: Sequence[Inquiry]) -> tuple[Inquiry, ...]:
    """Return the questions since the last reply, oldest first."""
    last = max((n for n, one in enumerate(inquiries) if one.is_reply), default=-1)
    return tuple(inquiries[last + 1 :])


def answered_by(inquiries: Sequence[Inquiry], reply_ts: str) -> tuple[Inquiry, ...]:
    """Return the questions that this reply answered first."""
    times = [one.reply_ts for one in inquiries]
    return unanswered(inquiries[: times.index(reply_ts)]) if reply_ts in times else ()


def ask(
    approval: Approval, call: int | None, reviewer: Reviewer, text: str, now_ms: int
) -> Change | Inquiry | Refusal:
    """Add a question to the requester.

    Args:
        approval: the current record.
        call: index of the call in question; None: the whole card.
        reviewer: the person who asks; must be allowed to decide the call, or any call
            of the card.
        text: the question, at most `MAX_QUESTION` characters.
        now_ms: the store's clock.

    Returns:
        The stored question, if this person already asked it without a reply since.
    """
    if not has_requester(approval):
        return _NOBODY
    refused = refusal(approval, reviewer, now_ms, call=call)
    if refused is not None:
        return refused
    if problem := _problem(text, MAX_QUESTION):
        return problem
    for one in unanswered(approval.inquiries):
        # A form that was sent twice asks once.
        is_same = one.by.is_same(reviewer.person) and one.call == call
        if is_same and one.text == text:
            return one
    if sum(not one.is_reply for one in approval.inquiries) >= MOST_QUESTIONS:
        return _ENOUGH
    asked = Inquiry(by=reviewer.person, text=text, at_ms=now_ms, call=call)
    roles = [role for item in approval.items for role in item.requirement.roles]
    data = {"gesture": reviewer.gesture.value}
    if call is not None:
        data["call"] = str(call + 1)
    names = tuple(dict.fromkeys(quorum.roles_of(reviewer, roles)))
    return _added(approval, EventName.APPROVAL_ASKED, asked, data, names)


def reply(
    approval: Approval, person: Person, text: str, ts: str, now_ms: int
) -> Change | Inquiry | Refusal:
    """Add a reply of the requester; the same message is added once.

    Args:
        approval: the current record.
        person: the author.
        text: the reply, at most `MAX_REPLY` characters.
        ts: of the message in Slack.
        now_ms: the store's clock.

    Returns:
        The stored reply, if this message was recorded before.
    """
    if not takes_reply(approval, person):
        return _NOT_YOURS
    # Check this before the state: Slack may deliver a message again that was recorded
    # in time.
    kept = next((one for one in approval.inquiries if one.reply_ts == ts), None)
    ends = kept or _why_not_kept(approval, text, now_ms)
    if ends is not None:
        return ends
    # From the record and not from the message: it has the name given with the request.
    by = approval.requester or person
    replied = Inquiry(by=by, text=text, at_ms=now_ms, reply_ts=ts)
    data = {"gesture": Gesture.THREAD_REPLY.value, REPLY_TS: ts}
    return _added(approval, EventName.APPROVAL_REPLIED, replied, data)


def _why_not_kept(approval: Approval, text: str, now_ms: int) -> Refusal | None:
    """Return why a reply of the requester cannot be stored; None: it can."""
    if not any(item.is_pending for item in approval.items):
        return Stale.of(approval.items[-1])
    if is_over(approval, now_ms):
        return Expired(expires_at_ms=approval.expires_at_ms)
    is_full = sum(one.is_reply for one in approval.inquiries) >= MOST_REPLIES
    return _FULL if is_full else _problem(text, MAX_REPLY)


def _problem(text: str, most: int) -> Forbidden | None:
    if not text.strip():
        return Forbidden(reason="There is no text in it, so nothing was recorded.")
    if len(text) > most:
        return Forbidden(
            reason=f"This has {len(text):,} characters, and {most:,} are kept, so "
            "nothing was recorded. Please write a shorter one."
        )
    return None


def _added(
    before: Approval,
    name: EventName,
    one: Inquiry,
    data: dict[str, str],
    roles: tuple[str, ...] = (),
) -> Change:
    inquiries = (*before.inquiries, one)
    after = before.with_(inquiries=inquiries, rev=before.rev + 1)
    # An event of the approval, not of an item: metrics, precedents and replays read
    # only the decision of a call.
    event = approval_event(after, name, reason=one.text)
    actor = f"{one.by.team}/{one.by.user}"
    told = event.with_(actor=actor, roles=roles, data=event.data | data)
    # Only before the end: the sweep may expire the card between the read and this
    # write.
    return Change(after, (told,), before_ms=next_end_ms(before, one.at_ms))


def add_report(
    approval: Approval, reporter: Reviewer, text: str, now_ms: int
) -> Change | None:
    """Add a person's report to an approval; None if they reported it before."""
    by = reporter.person
    # One report a person, so a click sent twice is announced once.
    if any(one.by.is_same(by) for one in approval.remarks):
        return None
    remarks = (*approval.remarks, Remark(by=by, text=text, at_ms=now_ms))
    event = approval_event(approval, EventName.APPROVAL_REPORTED, reason=text)
    after = approval.with_(remarks=remarks, rev=approval.rev + 1)
    gesture = {"gesture": reporter.gesture.value}
    reported = event.with_(actor=f"{by.team}/{by.user}", data=gesture)
    return Change(after, (reported,))
