"""Execution state changes of an authorized call: claim, release, finish.

An execution is one attempt of one owner. ``fence`` is its fencing token, a number that
rises with each attempt. A report of an older attempt is refused, unless people
reconciled that attempt. The owner renews the lease of its claim. If the lease ends
without a report, the tool's effect is unknown: the item is in doubt, unless the tool is
idempotent.

An attempt is the right to run a call once, and each is spent once. A claim spends it,
and so does each end of an authorization: a lapse, a withdrawal, a return to people. The
attempt's number is computed from the sealed record, and rises with each claim and each
return. An old record that is put back therefore names a spent attempt.

A call with ``handed_to`` is handed over to another program instead: the same claim, and
then `hand_over`. The program takes a decision once, so a hand-over whose lease has
ended may be repeated, and it is never in doubt.
"""

from __future__ import annotations

from typing import NamedTuple

from keyturn.gateway.approvals import timing
from keyturn.gateway.approvals.changes import Change, following, reached
from keyturn.gateway.approvals.events import (
    Event,
    EventName,
    approval_event,
    named_after,
)
from keyturn.gateway.approvals.lifecycle import FINAL, Transition, advance
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import Finding, ItemState, Result
from keyturn.gateway.protocol.wire import AskedAgain, HandOverEnd, ReportedOutcome

_MOVES = {
    ItemState.AUTHORIZED: Transition.RELEASE,
    ItemState.EXECUTED: Transition.EXECUTE,
    ItemState.FAILED: Transition.FAIL,
    ItemState.IN_DOUBT: Transition.DOUBT,
}

NEVER_AGAIN = 2**31
"""Number above the attempts of any record: it spends all of them."""

_ENDED = FINAL | {ItemState.FAILED}

CLAIMED = frozenset({ItemState.EXECUTING, ItemState.HANDING_OVER})
"""States of a call that an attempt has claimed."""


def claim(
    approval: Approval, item: Item, *, owner: str, lease_ms: int, now_ms: int
) -> Change:
    """Give one attempt the right to run an item, or to hand it over.

    Args:
        approval: the current record.
        item: authorized, or claimed by an owner whose lease has ended.
        owner: the attempt, unique.
        lease_ms: length of the claim without a heartbeat.
        now_ms: the store's clock.
    """
    started = item.moved(
        Transition.HAND if item.handed_to else Transition.CLAIM,
        now_ms,
        # Rises with each start, even of the same owner: a report names its start.
        fence=item.fence + 1,
        owner=owner,
        claimed_until_ms=now_ms + lease_ms,
    )
    event = approval_event(approval, named_after(started.state), started)
    # The write fails if the authorization lapses after this read.
    until_ms = 0 if item.state is ItemState.EXECUTING else item.lapses_at_ms
    return Change(following(approval, started), (event,), before_ms=until_ms)


def put_in_doubt(approval: Approval, item: Item, *, now_ms: int) -> Change:
    """Put an execution in doubt: its owner is silent, and it must not be repeated."""
    return reached(approval, item.moved(Transition.DOUBT, now_ms, claimed_until_ms=0))


def shorten_claim(
    approval: Approval, item: Item, *, lease_ms: int, now_ms: int
) -> Change | None:
    """Cut a claim to the length of a lease; None when it is not longer.

    A claim is longer when the server's clock went back. The cut gives a dead owner the
    claim no longer than a live one.
    """
    # `<=`: a claim written in this millisecond is exactly as long as a lease.
    if item.claimed_until_ms - now_ms <= lease_ms:
        return None
    cut = item.with_(claimed_until_ms=now_ms + lease_ms)
    return Change(following(approval, cut))


def finish(
    approval: Approval,
    item: Item,
    fence: int,
    result: Result | None,
    *,
    now_ms: int,
    has_begun: bool = True,
) -> Change | bool:
    """Record the result of an execution, or give its claim back.

    Args:
        approval: the current record.
        item: the item of ``approval`` that ran.
        fence: of the attempt that reports.
        result: of the tool; None gives the claim back unused.
        now_ms: the store's clock.
        has_begun: False if the tool was not begun. The authorization then keeps its
            time of lapse.

    Returns:
        The change. Without a change: True if the report was recorded before, False if
        it is refused. A report after people reconciled the attempt is kept next to
        their finding, see `is_late`.
    """
    is_owned = item.fence == fence
    # First check: a finding about this start counts in every later state.
    if result is not None and fence and item.reconciled_fence == fence:
        return _reported_late(approval, item, result, is_owned=is_owned, now_ms=now_ms)
    if not is_owned:
        return False
    after, kept = state_after(item, result), item.result
    is_doubt = item.state is ItemState.IN_DOUBT
    # A repeated report, after its answer got lost, gets the first answer. Another
    # result of the same attempt is neither kept nor acknowledged.
    if item.state is after and (kept is not None or not is_doubt):
        return not (kept and result) or kept.payload == result.payload
    # A late report of the owner ends the doubt.
    is_claimed = item.state is ItemState.EXECUTING or (
        # Only given back: a program that runs it by itself has no result for us.
        item.state is ItemState.HANDING_OVER and result is None
    )
    if not is_claimed and not (is_doubt and result):
        return False
    return _ended(approval, item, result, (), now_ms=now_ms, has_begun=has_begun)


def hand_over(
    approval: Approval, item: Item, end: HandOverEnd, *, now_ms: int
) -> Change | bool:
    """Record how a hand-over ended.

    Returns:
        The change. Without a change: True if the same end was recorded before, False if
        it is refused.
    """
    if item.fence != end.fence:
        return False
    if item.state in {ItemState.HANDED_OVER, ItemState.NOT_TAKEN}:
        return item.handed.problem == end.problem
    if item.state is not ItemState.HANDING_OVER:
        return False
    ended = item.moved(
        Transition.TAKE if end.taken else Transition.MISS,
        now_ms,
        claimed_until_ms=0,
        lapses_at_ms=0,
        owner="",
        handed=item.handed.with_(problem=end.problem, detail=end.detail),
    )
    event = approval_event(
        approval, named_after(ended.state), ended, reason=end.problem
    )
    return Change(following(approval, ended), (event,))


def report_outcome(
    approval: Approval, item: Item, report: ReportedOutcome
) -> Change | bool:
    """Record a program's report of a call that it took; the first one counts.

    Returns:
        As `hand_over`.
    """
    if item.state is not ItemState.HANDED_OVER:
        return False
    result = Result(ok=report.ok, summary=report.summary)
    if item.handed.reported is not None:
        return item.handed.reported == result
    reason = "executed" if report.ok else "failed"
    event = approval_event(approval, EventName.ITEM_REPORTED, item, reason=reason)
    noted = item.with_(handed=item.handed.with_(reported=result))
    return Change(following(approval, noted), (event,))


def report_asked_again(
    approval: Approval, item: Item, report: AskedAgain, *, now_ms: int
) -> Change | bool:
    """Record that an agent asked again, as a person wanted, or why it could not.

    Returns:
        As `hand_over`.
    """
    if not item.is_to_be_asked_again:
        return item.was_refused and bool(item.handed.asked_again_ms) and report.ok
    handed = item.handed.with_(again_detail=report.detail)
    # Else a person may try once more.
    again = {"asked_again_ms": now_ms} if report.ok else {"again_by": None}
    asked = item.with_(handed=handed.with_(**again), lapses_at_ms=0)
    reason = "" if report.ok else NOT_ASKED_AGAIN
    event = approval_event(approval, EventName.ITEM_ASKED_ANEW, asked, reason=reason)
    return Change(following(approval, asked), (event,))


NOT_ASKED_AGAIN = "The agent did not ask again."
"""Reason of the event about a question that did not come again."""


def is_late(change: Change) -> bool:
    """Return True if `finish` recorded this change after people had reconciled it."""
    return change.events[0].name is EventName.ITEM_REPORTED


def state_after(item: Item, result: Result | None) -> ItemState:
    """Return the state after a claim ends; None as the result means unused."""
    if result is None:
        return ItemState.AUTHORIZED
    if result.ok:
        return ItemState.EXECUTED
    return ItemState.IN_DOUBT if item.asks_on_failure else ItemState.FAILED


def _reported_late(
    approval: Approval, item: Item, result: Result, *, is_owned: bool, now_ms: int
) -> Change | bool:
    if item.late_result is not None:
        return False  # the first report counts
    reason = "executed" if result.ok else "failed"
    event = approval_event(approval, EventName.ITEM_REPORTED, item, reason=reason)
    # Keep the report even if it changes nothing: it may contradict the finding.
    noted = item.with_(late_result=result)
    # The report ends a call that was to run again and has not started. It also corrects
    # a call that people skipped although it ran.
    corrects = item.state is ItemState.AUTHORIZED or (
        item.state is ItemState.FAILED and result.ok
    )
    if is_owned and corrects:
        return _ended(approval, noted, result, (event,), now_ms=now_ms)
    return Change(following(approval, noted), (event,))


def _ended(
    approval: Approval,
    item: Item,
    result: Result | None,
    events: tuple[Event, ...],
    *,
    now_ms: int,
    has_begun: bool = True,
) -> Change:
    after = state_after(item, result)
    is_same = item.state is after
    ended = item.with_(
        state=after if is_same else advance(item.state, _MOVES[after]),
        changed_at_ms=now_ms,
        claimed_until_ms=0,
        owner="",
        # A claim that is given back keeps the result of an earlier attempt.
        result=result or item.result,
    )
    if result is None and has_begun and not item.handed_to:
        # A nested call waits for people, longer than an unused authorization lasts.
        ended = ended.with_(lapses_at_ms=now_ms + timing.PAUSE_MS)
    event = approval_event(approval, named_after(after), item)
    return Change(following(approval, ended), (*events, event))


class Attempt(NamedTuple):
    """One right to run a call, or to be covered by a standing approval.

    Attributes:
        approval, item: the call, by id and index; or the use of a standing approval,
            from 1.
        number: rises with each attempt, from 1.
        owner: of the claim; "" if the attempt ends unused.
    """

    approval: str
    item: int
    number: int
    owner: str = ""


def next_attempt(approval: Approval, item: Item) -> Attempt:
    """Return the next attempt to be spent, without an owner."""
    number = item.fence + _returns(item) + 1
    return Attempt(approval.id, item.index, number)


def knowing(item: Item, spent: int) -> Item:
    """Return an item that counts an attempt as begun."""
    return item.with_(fence=max(item.fence, spent - _returns(item)))


def is_asked_again_since(item: Item, at_ms: int) -> bool:
    """Return True if people allowed another run of a call after ``at_ms``."""
    is_again = item.finding is Finding.RERUN and item.reconciled_fence == item.fence
    return (
        item.state is ItemState.AUTHORIZED and is_again and item.changed_at_ms > at_ms
    )


def begun_attempts(
    approval: Approval, item: Item, standing: Approval | None
) -> tuple[Attempt, ...]:
    """Return the attempts that the latest claim spent.

    The use of a standing approval is one of them: an older record of the standing
    approval has fewer uses, and would cover other calls instead.
    """
    number = item.fence + _returns(item)
    begun = Attempt(approval.id, item.index, number, item.owner)
    used_for = [use.item for use in standing.uses] if standing else []
    if standing is None or item.id not in used_for:
        return (begun,)
    use = 1 + used_for.index(item.id)
    return begun, Attempt(standing.id, use, number, item.id)


def spent_by(
    before: Approval, after: Approval, standing: Approval | None = None
) -> tuple[Attempt, ...]:
    """Return the attempts that a change of an approval spends.

    ``standing`` is the standing approval that covers the claimed call.
    """
    found: list[Attempt] = []
    for was, now in zip(before.items, after.items, strict=True):
        if was is now:
            continue
        if now.state in CLAIMED and now.fence > was.fence:
            found += begun_attempts(after, now, standing)
        elif _is_ended(was, now):
            found.append(next_attempt(before, was))
    return tuple(found)


def _is_ended(was: Item, now: Item) -> bool:
    if was.state is ItemState.AUTHORIZED:
        return now.state is ItemState.PENDING or now.state in _ENDED
    # An older record must not be handed over again after the end.
    if was.state is ItemState.HANDING_OVER:
        return now.state in _ENDED
    return was.state is ItemState.IN_DOUBT and now.state in _ENDED


def _returns(item: Item) -> int:
    return item.revoked.times if item.revoked else 0
