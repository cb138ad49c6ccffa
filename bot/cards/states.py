"""Header and status sentence of an item or an approval, by its state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import LiteralString

from keyturn.bot.cards.listing import call_title, one_line
from keyturn.bot.cards.needs import approvals, counted_votes, still_needed
from keyturn.bot.cards.refs import join_list, people, when, who
from keyturn.bot.cards.totals import header_total
from keyturn.bot.text import (
    Label,
    Plain,
    Template,
    fit,
    joined,
    label,
    parted,
    template,
    untrusted,
)
from keyturn.gateway.approvals.decisions import Stale
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.permission import is_dead_end
from keyturn.gateway.approvals.record import Approval, DecisionRecord, Item
from keyturn.gateway.approvals.requirement import Vote
from keyturn.gateway.approvals.timing import end_of, ends, is_late, is_over
from keyturn.gateway.protocol.records import ItemState, Person, Tier, Verb

MAX_ACT = 140
"""Maximum characters of a call's title in a header; Slack accepts 150 in all."""

MAX_TOOL = 120
"""The same for the name of a tool next to a number of calls."""

_S = ItemState
STATE_NAMES: dict[ItemState, LiteralString] = {
    _S.PENDING: "waiting",
    _S.AUTHORIZED: "approved",
    _S.EXECUTING: "running",
    _S.EXECUTED: "done",
    _S.FAILED: "failed",
    _S.IN_DOUBT: "in doubt",
    _S.REJECTED: "rejected",
    _S.ANSWERED: "answered",
    _S.EXPIRED: "expired",
    _S.SUPERSEDED: "cancelled",
    _S.WITHDRAWN: "withdrawn",
    _S.LAPSED: "lapsed",
}
"""One short word for each state, for counts and the fallback text."""

UNREVIEWED_STATE_NAMES = STATE_NAMES | {
    _S.AUTHORIZED: "not started yet",
    _S.EXECUTING: "started",
}
"""The same for calls that the policy authorized without review."""

SIGNS: dict[ItemState, str] = {
    _S.PENDING: "⏳",
    _S.AUTHORIZED: "🔑",
    _S.EXECUTING: "🔄",
    _S.EXECUTED: "✅",
    _S.FAILED: "❌",
    _S.IN_DOUBT: "❓",
    _S.REJECTED: "🚫",
    _S.ANSWERED: "💬",
    _S.EXPIRED: "⌛",
    _S.SUPERSEDED: "⏩",
    _S.WITHDRAWN: "↩",
    _S.LAPSED: "⌛",
}
"""The sign of each state; its sentence begins with the same sign."""

SEVERAL = "☑️"
"""The sign of calls that ended in different ways."""

TRIAGE_TITLE = "Triage (a model's opinion, unverified)"
"""Title of the rationale of a model that raised a call's tier."""


_STATUS_LINES: dict[ItemState, tuple[LiteralString, LiteralString]] = {
    _S.AUTHORIZED: ("🔑 *Approved*", ", {at}. Waiting to run."),
    _S.EXECUTING: ("🔄 *Approved*", ", running since {at}."),
    _S.EXECUTED: ("✅ *Approved*", ", done {at}."),
    _S.FAILED: ("❌ *Approved*", ", but it failed {at}."),
    _S.IN_DOUBT: (
        "❓ *We don't know whether this ran*",
        ": the worker stopped in the middle {at}. Please check, then choose.",
    ),
    _S.REJECTED: ("🚫 *Rejected*", ", {at}. Nothing ran."),
    _S.ANSWERED: ("💬 *Answered*", ", {at}. Nothing ran."),
    _S.EXPIRED: ("⌛ *Expired*", " {at}. Nothing ran."),
    _S.SUPERSEDED: ("⏩ *Cancelled*", " {at}: a newer message came. Nothing ran."),
    _S.WITHDRAWN: ("↩ *Withdrawn*", " {at}. Nothing ran."),
    _S.LAPSED: ("⌛ *Approved*", ", but the approval lapsed {at}. Nothing ran."),
}
"""Text of each state before and after the names of the people who caused it."""

_DOUBT_RESTORED: LiteralString = (
    ": its record was restored from an older copy {at}. Please check, then choose."
)

_APPROVED = frozenset(
    {_S.AUTHORIZED, _S.EXECUTING, _S.EXECUTED, _S.FAILED, _S.IN_DOUBT, _S.LAPSED}
)
"""States that follow an approval."""

_UNDECIDED = frozenset({_S.PENDING, _S.IN_DOUBT, _S.EXPIRED, _S.SUPERSEDED})
"""States that votes do not cause."""

NOTHING_RAN: LiteralString = "Nothing ran."
_HAD_STARTED: LiteralString = "It had started and does not continue."
_NOT_KNOWN: LiteralString = "We don't know whether it ran before."


def frozen(items: Sequence[Item], *, are_many: bool = False) -> list[Template]:
    """Explain that pending calls cannot be approved, because of a freeze."""
    count = sum(item.is_pending and item.is_frozen for item in items)
    if not count:
        return []
    if not are_many:
        return [template("🧊 *Frozen*: approve after the freeze ends.")]
    return [
        template(
            "🧊 *Frozen*: {n} of the calls can be approved after the freeze ends.",
            n=count,
        )
    ]


def what_ran(item: Item | Stale) -> LiteralString:
    """Return the true sentence to use instead of `NOTHING_RAN`.

    Args:
        item: a call in one of the states `UNEXECUTED`, or one that expires.
    """
    if item.is_restored:
        return _NOT_KNOWN
    return _HAD_STARTED if item.has_started else NOTHING_RAN


def header_text(approval: Approval, *, now_ms: int) -> Plain:
    """Return the header of a card: the sign of its state, and the call or calls."""
    if not approval.is_batch:
        item = approval.items[0]
        sign, _ = parted(status_sentence(approval, item, now_ms=now_ms))
        return untrusted(f"{sign} {fit(call_title(item), MAX_ACT)}")
    return batch_title(approval, _batch_state(approval, now_ms)[0])


def counted(calls: int) -> str:
    """Return the number of calls, in words."""
    return "1 call" if calls == 1 else f"{calls} calls"


def batch_title(approval: Approval, sign: str) -> Plain:
    """Return the header of several calls: their number, tools and a total."""
    tools = [*dict.fromkeys(one_line(item.tool) for item in approval.items)]
    total = header_total(approval)
    room = min(MAX_TOOL, MAX_ACT - 15 - len(total))
    count = len(approval.items)
    number = f"{count} ×" if len(tools) == 1 else f"{counted(count)}:"
    text = f"{sign} {number} {fit(', '.join(tools), room)}"
    return untrusted(f"{text} · {total}" if total else text)


def status_label(approval: Approval, *, now_ms: int) -> list[Label]:
    """Return the state of several calls in a few words, for the line below the header.

    A single call has a sentence there, see `status_sentence`.
    """
    return [_batch_state(approval, now_ms)[1]] if approval.is_batch else []


def _batch_state(approval: Approval, now_ms: int) -> tuple[str, Label]:
    """Return the state of several calls: a sign, and fixed words with numbers."""
    every = len(approval.items)
    waiting = sum(item.is_pending for item in approval.items)
    doubts = sum(item.state is _S.IN_DOUBT for item in approval.items)
    # The sweeper closes the record a moment later; until then its state is still open.
    if waiting and is_over(approval, now_ms):
        return SIGNS[_S.EXPIRED], label("The time is over")
    if waiting:
        of = "" if waiting == every else f": {waiting} of {every} calls"
        return SIGNS[_S.PENDING], label(f"Approval needed{of}")
    if doubts:
        return SIGNS[_S.IN_DOUBT], label(f"Please check {doubts} of {every} calls")
    return SEVERAL, label(state_counts(approval))


def state_counts(approval: Approval) -> str:
    """Return the number of items in each state: "2 done, 1 rejected"."""
    counts = Counter(item.state for item in approval.items)
    words = UNREVIEWED_STATE_NAMES if approval.is_auto_approved else STATE_NAMES
    return ", ".join(
        f"{counts[state]} {words[state]}" for state in ItemState if counts[state]
    )


def status_sentence(approval: Approval, item: Item, *, now_ms: int) -> Template:
    """Return the state of one item, with the people who caused it and the time."""
    if item.is_pending:
        return _pending(approval, item, now_ms=now_ms)
    head, tail = _STATUS_LINES[item.state]
    if item.has_failed:
        head, tail = "❌ *Failed*", " {at}. Should it run again?"
    elif item.is_restored and item.state is _S.IN_DOUBT:
        tail = _DOUBT_RESTORED
    tail = tail.replace(NOTHING_RAN, what_ran(item))
    sentence = template(tail, at=when(item.changed_at_ms))
    by = approvers(item)
    # With a decision a person withdrew it, and with `revoked` it ended by itself.
    if item.state is _S.WITHDRAWN and not item.decision and not item.revoked:
        sentence = joined("", [template(" by the agent"), sentence])
    if item.state not in _UNDECIDED and by:
        if is_own_edit(item):
            head = head.replace("*Approved*", "*Edited and approved*")
        return joined("", [template(head), template(" by "), by_whom(item), sentence])
    return joined("", [template(head), sentence])


def is_just_waiting(approval: Approval, item: Item) -> bool:
    """Return whether a call needs one person's vote, and has no other notes."""
    count = counted_votes(item)
    return (
        item.is_pending
        and (count.have, count.need) == (0, 1)
        and not count.lacking
        and item.tier is not Tier.DENY
        and not is_dead_end(approval, item, item.requirement)
    )


def taken_by(approval: Approval, *, now_ms: int) -> Template | None:
    """Return the person who said "I'm on it"; None if that is over."""
    taken = approval.acknowledged
    if taken is None or approval.state is not ApprovalState.OPEN:
        return None
    until_ms = min(taken.until_ms, max(ends(approval), default=taken.until_ms))
    if now_ms >= until_ms:
        return None
    return template(
        "👀 {who} is on it until {at}.", who=who(taken.by), at=when(until_ms)
    )


def approvers(item: Item) -> list[Person]:
    """Return the people who decided an item: its voters, or the decider."""
    return [one.by for one in _signed(item)]


def is_own_edit(item: Item) -> bool:
    """Return whether the same single person edited and approved a call."""
    edit = item.edit
    return edit is not None and item.state in _APPROVED and approvers(item) == [edit.by]


def by_whom(item: Item) -> Template:
    """Name the same people, each with the people for whom they decided."""
    return join_list([_signature(one) for one in _signed(item)])


def _signed(item: Item) -> Sequence[Vote | DecisionRecord]:
    decision = item.decision
    if decision is not None and decision.verb in {Verb.REJECT, Verb.RESPOND}:
        return [decision]
    if item.state is _S.WITHDRAWN:
        return []
    # Votes for the version before an edit stay in the record, but did not cause its
    # state.
    votes = [vote for vote in item.votes if vote.action_hash == item.action_hash]
    return votes or ([decision] if decision else [])


def _signature(one: Vote | DecisionRecord) -> Template:
    named = people([one.by])
    if not one.on_behalf_of:
        return named
    return joined(" for ", [named, people(one.on_behalf_of)])


def _pending(approval: Approval, item: Item, *, now_ms: int) -> Template:
    at = when(end_of(approval, item))
    if is_late(approval, item, now_ms):
        over = template("⌛ *The time to decide ended* {at}.", at=at)
        return joined(" ", [over, template(what_ran(item))])
    # A batch shows its end once, in its head.
    until = [] if approval.is_batch else [template("Expires {at}.", at=at)]
    if item.tier is Tier.DENY:
        denied = template("⛔ *No longer allowed by the policy.*")
        again = template("That may change again.")
        return joined(" ", [denied, again, *until])
    if is_dead_end(approval, item, item.requirement):
        stuck = template("⛔ *Cannot be approved:* too few people are allowed to.")
        reject = template("It can be rejected.") if Verb.REJECT in item.allow else None
        ends = template("Expires {at}.", at=at)
        return joined(" ", [stuck, *([reject] if reject else []), ends])
    count = counted_votes(item)
    if count.have and count.is_met:
        by = joined(
            "", [template("⏳ "), approvals(item), template(", by "), by_whom(item)]
        )
        enough = template(". Enough people approved: press *Approve* once more.")
        return joined(" ", [joined("", [by, enough]), *until])
    if count.have:
        have = joined("", [template("⏳ "), approvals(item), template(", by")])
        by = joined("", [by_whom(item), still_needed(item), template(".")])
        return joined(" ", [have, by, *until])
    waits = template("⏳ *Approval needed*")
    if count.need > 1:
        waits = template("⏳ *Needs {need} approvals*", need=count.need)
    waits = joined("", [waits, still_needed(item), template(".")])
    return joined(" ", [waits, *until])
