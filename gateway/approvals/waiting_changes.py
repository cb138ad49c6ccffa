"""Changes of a waiting approval that decide nothing: its calls keep waiting.

People extend the deadline, mark that they handle it, or ask the requester, who replies.
Timers remind, escalate and release. Others can still decide. People may also report a
call that ran; a report undoes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import assert_never

from keyturn.gateway.approvals import quorum, timing
from keyturn.gateway.approvals.changes import Change, by_person, following
from keyturn.gateway.approvals.decisions import (
    Expired,
    Forbidden,
    Gesture,
    Refusal,
    Reviewer,
    Stale,
    Unknown,
)
from keyturn.gateway.approvals.events import (
    ENDS_DIFFER,
    Event,
    EventName,
    approval_event,
)
from keyturn.gateway.approvals.record import (
    Acknowledgement,
    Approval,
    Inquiry,
    Item,
    Remark,
)
from keyturn.gateway.protocol.records import ItemState, Person, Tier

TAKEN_FOR = timedelta(minutes=10)
"""Duration of "I'm on it"."""

_TAKEN_MS = int(TAKEN_FOR.total_seconds() * 1000)
_FIRED = {
    timing.TimerKind.REMIND: EventName.APPROVAL_REMINDED,
    timing.TimerKind.ESCALATE: EventName.APPROVAL_ESCALATED,
    timing.TimerKind.RELEASE: EventName.APPROVAL_RELEASED,
    timing.TimerKind.DOUBT: EventName.APPROVAL_STILL_IN_DOUBT,
    timing.TimerKind.CALLER: EventName.APPROVAL_CALLER_GONE,
}

_AGAIN_MS = 24 * 60 * 60 * 1000
"""Time in which an agent has to ask again."""

MAX_QUESTION = 1_000
"""Longest question, in characters."""

MAX_REPLY = 3_000
"""Longest reply, in characters."""

MOST_QUESTIONS = 10
MOST_REPLIES = 20
"""Maximum number of each in an approval."""

SNOOZED_BY = "snoozed_by"
"""Key in the data of `APPROVAL_RELEASED`: the person to remind."""

REPLY_TS = "reply_ts"
"""Key in the data of a reply: its Slack message."""

_TOO_LATE = Forbidden(reason="It expires before your snooze would end. Please decide.")
_URGENT = Forbidden(reason="An escalated call cannot be snoozed. Please decide.")
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


def extend(approval: Approval, reviewer: Reviewer, now_ms: int) -> Change | Refusal:
    """Add half of the original time, up to `LONGEST` times of it in total.

    Args:
        approval: the current record.
        reviewer: the person asking; must be allowed to decide a waiting call.
        now_ms: the store's clock.
    """
    if refused := refusal(approval, reviewer, now_ms):
        return refused
    # Half of the original time and not of the rest, which would shrink with each click.
    added_ms = approval.ttl_ms // 2
    longer = [
        item.with_(expires_at_ms=until_ms)
        for item in approval.items
        if item.is_pending
        and not timing.is_late(approval, item, now_ms)
        # A call at its limit keeps its end.
        and (until_ms := _extended_ms(approval, item, added_ms))
    ]
    if not longer:
        return Forbidden(
            reason=(
                "No more time can be added. Please decide, or let it expire; the "
                "agent can ask again."
            )
        )
    after = timing.with_end(approval, *longer)
    return _handled(approval, after, reviewer, EventName.APPROVAL_EXTENDED, now_ms)


def acknowledge(
    approval: Approval, reviewer: Reviewer, now_ms: int
) -> Change | Refusal:
    """Mark a person as handling an approval, for `TAKEN_FOR`; the latest one counts.

    Arguments are those of `extend`.
    """
    taken = Acknowledgement(by=reviewer.person, until_ms=now_ms + _TAKEN_MS)
    return _taken(approval, taken, reviewer, now_ms)


def snooze(
    approval: Approval, until_ms: int, reviewer: Reviewer, now_ms: int
) -> Change | Refusal:
    """Remind a person at a time, or earlier with all others. A new snooze replaces it.

    Other arguments are those of `extend`.
    """
    if not can_snooze(approval):
        return _URGENT
    if until_ms >= approval.expires_at_ms:
        return _TOO_LATE
    taken = Acknowledgement(by=reviewer.person, until_ms=until_ms, is_snooze=True)
    return _taken(approval, taken, reviewer, now_ms)


def can_snooze(approval: Approval) -> bool:
    """Return whether none of the waiting calls is urgent."""
    return all(one.tier is Tier.APPROVE for one in approval.items if one.is_pending)


def _taken(
    approval: Approval, taken: Acknowledgement, reviewer: Reviewer, now_ms: int
) -> Change | Refusal:
    if refused := refusal(approval, reviewer, now_ms):
        return refused
    marked = approval.with_(acknowledged=taken)
    return _handled(approval, marked, reviewer, EventName.APPROVAL_ACKNOWLEDGED, now_ms)


def fire(approval: Approval, kind: timing.TimerKind, now_ms: int) -> Change | None:
    """Return the change by a due timer; None if the approval does not wait any more.

    It reminds people, escalates, asks about a doubt again, ends "I'm on it", or records
    that the caller has gone.
    """
    states = {item.state for item in approval.items}
    called = approval.waiting.escalate_to if kind is timing.TimerKind.ESCALATE else ()
    event = approval_event(approval, _FIRED[kind], reason=", ".join(called))
    after = approval.with_(rev=approval.rev + 1)
    if kind is timing.TimerKind.DOUBT:
        if ItemState.IN_DOUBT not in states:
            return None
        # Set the timer again in the same step: a crash right after it loses no
        # reminder.
        again = (kind.value, now_ms + timing.DOUBT_THEN_MS)
        return Change(after, (event,), fires=kind, timers=(again,))
    if kind is timing.TimerKind.CALLER:
        if not any(
            item.may_run and not timing.is_late(approval, item, now_ms)
            for item in approval.items
        ):
            return None
        return Change(after.with_(caller_gone=True), (event,), fires=kind)
    # A reminder about a call that has ended, or ends with the next sweep, would only
    # confuse.
    if ItemState.PENDING not in states or timing.is_over(approval, now_ms):
        return None
    match kind:
        case timing.TimerKind.RELEASE:
            taken = approval.acknowledged
            if taken is not None and taken.is_snooze:
                event = event.with_(data={**event.data, SNOOZED_BY: taken.by.user})
            after = after.with_(acknowledged=None)
        case timing.TimerKind.REMIND:
            after = _unsnoozed(after.with_(reminded_at_ms=now_ms))
        case timing.TimerKind.ESCALATE:
            after = after.with_(escalated_at_ms=now_ms)
        case _:
            assert_never(kind)
    return Change(after, (event,), fires=kind)


def _unsnoozed(approval: Approval) -> Approval:
    """Return an approval without a snooze: its reminder calls everybody."""
    taken = approval.acknowledged
    return approval.with_(acknowledged=None) if taken and taken.is_snooze else approval


def attended(approval: Approval, until_ms: int) -> Change:
    """Return the change by which a caller waits for an approval until a time."""
    after = approval.with_(caller_gone=False, rev=approval.rev + 1)
    event = approval_event(after, EventName.APPROVAL_CALLER_BACK)
    return Change(after, (event,), timers=((timing.TimerKind.CALLER, until_ms),))


def refusal(
    approval: Approval, reviewer: Reviewer, now_ms: int, *, call: int | None = None
) -> Refusal | None:
    """Return why this person may not act on the waiting calls; None: they may.

    They must be allowed to decide this call, or any waiting call if ``call`` is None.
    """
    items = approval.items if call is None else approval.items[call : call + 1]
    waiting = [item for item in items if item.is_pending]
    if not waiting:
        return Stale(item=items[-1]) if items else Unknown()
    waiting = [item for item in waiting if not timing.is_late(approval, item, now_ms)]
    if not waiting:
        return Expired(expires_at_ms=timing.end_of(approval, items[-1]))
    reasons = [
        quorum.ineligible_reason(
            reviewer, item.requirement, approval.principals, item.principals
        )
        for item in waiting
    ]
    # A reviewer of one call may extend the time of the whole card.
    if None in reasons:
        return None
    return Forbidden(reason=next(each for each in reasons if each))


def _extended_ms(approval: Approval, item: Item, added_ms: int) -> int:
    """Return the end of a call with this much more time; 0: it can get no more."""
    end_ms = timing.end_of(approval, item)
    until_ms = min(end_ms + added_ms, timing.latest_ms(approval, item))
    return until_ms if until_ms > end_ms else 0


def _handled(
    before: Approval, after: Approval, reviewer: Reviewer, name: EventName, now_ms: int
) -> Change:
    data = {"expires_at_ms": str(after.expires_at_ms)}
    if len(timing.ends(after)) > 1:
        data[ENDS_DIFFER] = "yes"
    event = approval_event(after, name).with_(data=data)
    return _by_person(before, after, event, reviewer, now_ms)


def _by_person(
    before: Approval, after: Approval, event: Event, person: Reviewer, now_ms: int
) -> Change:
    """Return a change by a person, valid only before the next end of a waiting call."""
    roles = [role for item in after.items for role in item.requirement.roles]
    told = by_person(event, person, roles)
    # The sweep may expire the card between the read and this write.
    next_ms = timing.next_end_ms(before, now_ms)
    return Change(after.with_(rev=before.rev + 1), (told,), before_ms=next_ms)


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
    if refused := refused or _problem(text, MAX_QUESTION):
        return refused
    for one in unanswered(approval.inquiries):
        # A form that was sent twice asks once.
        is_same = one.by.is_same(reviewer.person) and one.call == call
        if is_same and one.text == text:
            return one
    if sum(not one.is_reply for one in approval.inquiries) >= MOST_QUESTIONS:
        return _ENOUGH
    asked = Inquiry(by=reviewer.person, text=text, at_ms=now_ms, call=call)
    data = {} if call is None else {"call": str(call + 1)}
    after = approval.with_(inquiries=(*approval.inquiries, asked))
    # An event of the approval, not of an item: metrics, precedents and replays read
    # only the decision of a call.
    event = approval_event(after, EventName.APPROVAL_ASKED, reason=text)
    return _by_person(approval, after, event.with_(data=data), reviewer, now_ms)


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
    refused = kept or _why_not_kept(approval, text, now_ms)
    if refused is not None:
        return refused
    # From the record and not from the message: it has the name given with the request.
    by = approval.requester or person
    replied = Inquiry(by=by, text=text, at_ms=now_ms, reply_ts=ts)
    after = approval.with_(inquiries=(*approval.inquiries, replied))
    event = approval_event(after, EventName.APPROVAL_REPLIED, reason=text)
    author = Reviewer(team=by.team, user=by.user, gesture=Gesture.THREAD_REPLY)
    return _by_person(approval, after, event.with_(data={REPLY_TS: ts}), author, now_ms)


def _why_not_kept(approval: Approval, text: str, now_ms: int) -> Refusal | None:
    """Return why a reply of the requester cannot be stored; None: it can."""
    if not any(item.is_pending for item in approval.items):
        return Stale(item=approval.items[-1])
    if timing.is_over(approval, now_ms):
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


def ask_again(
    approval: Approval, call: int, reviewer: Reviewer, now_ms: int
) -> Change | Refusal:
    """Mark a call that its agent should ask again; its connector reads the mark.

    Nothing is decided: the agent's new question gets a card of its own.

    Args:
        approval: the current record.
        call: index of a call whose program refused the decision.
        reviewer: the person; must be allowed to decide the call.
        now_ms: the store's clock.
    """
    item = approval.items[call]
    if not item.was_refused or item.handed.again_by is not None:
        return Stale(item=item)
    reason = quorum.ineligible_reason(reviewer, item.requirement, approval.principals)
    if reason is not None:
        return Forbidden(reason=reason)
    handed = item.handed.with_(again_by=reviewer.person, again_detail="")
    wanted = item.with_(handed=handed, lapses_at_ms=now_ms + _AGAIN_MS)
    event = approval_event(approval, EventName.ITEM_WANTED_AGAIN, item)
    told = by_person(event, reviewer, item.requirement.roles)
    return Change(following(approval, wanted), (told,), resumes=True)


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
    return Change(after, (by_person(event, reporter),))
