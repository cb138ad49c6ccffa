"""Headline and status sentence of an item or an approval, by its state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import LiteralString

from twokey.bot.cards.frame import is_table
from twokey.bot.cards.listing import call_title, one_line
from twokey.bot.cards.refs import join_list, people, when, who
from twokey.bot.cards.totals import header_total
from twokey.bot.cards.votes import approvals, counted_votes, still_needed
from twokey.bot.text import fit
from twokey.bot.text_types import (
    Label,
    Plain,
    Template,
    joined,
    label,
    template,
    untrusted,
)
from twokey.gateway.approvals.decisions import Stale
from twokey.gateway.approvals.lifecycle import UNEXECUTED, ApprovalState
from twokey.gateway.approvals.permission import is_dead_end
from twokey.gateway.approvals.record import Approval, DecisionRecord, Item
from twokey.gateway.approvals.requirement import Vote
from twokey.gateway.approvals.timing import end_of, ends, is_late, is_over
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Verb

MAX_ACT = 140
"""Characters of a header for what a call does; Slack takes 150 in all."""

MAX_TOOL = 120
"""The same for the name of a tool beside a number of calls."""

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
    _S.SUPERSEDED: "superseded",
    _S.WITHDRAWN: "withdrawn",
    _S.LAPSED: "lapsed",
}
"""One short word for each state, for counts and the fallback text."""

UNREVIEWED_STATE_NAMES = STATE_NAMES | {
    _S.AUTHORIZED: "not started yet",
    _S.EXECUTING: "started",
}
"""The same for calls that the policy let run."""

HEADLINES: dict[ItemState, str] = {
    _S.PENDING: "⏳ Approval needed",
    _S.AUTHORIZED: "🔑 Approved, not run yet",
    _S.EXECUTING: "🔄 Approved, running now",
    _S.EXECUTED: "✅ Approved and done",
    _S.FAILED: "❌ Approved, but it failed",
    _S.IN_DOUBT: "❓ Did it run? Please check",
    _S.REJECTED: "🚫 Rejected",
    _S.ANSWERED: "💬 Answered, nothing ran",
    _S.EXPIRED: "⌛ Expired, nothing ran",
    _S.SUPERSEDED: "⏩ Superseded, nothing ran",
    _S.WITHDRAWN: "↩ Withdrawn, nothing ran",
    _S.LAPSED: "⌛ Approved, but the approval lapsed",
}
"""The headline of a card with one call."""

TRIAGE_TITLE = "Triage (a model's opinion, unverified)"
"""Title of the rationale of a model that raised a call's tier."""


_STATUS_LINES: dict[ItemState, tuple[LiteralString, LiteralString]] = {
    _S.AUTHORIZED: ("🔑 *Approved*", ", {at}. Waiting to run."),
    _S.EXECUTING: ("🔄 *Approved*", ", running since {at}."),
    _S.EXECUTED: ("✅ *Approved*", ", done {at}."),
    _S.FAILED: ("❌ *Approved*", ", but it failed {at}."),
    _S.IN_DOUBT: (
        "❓ *In doubt*",
        " since {at}: the worker stopped while this ran. Please check, then say below.",
    ),
    _S.REJECTED: ("🚫 *Rejected*", ", {at}. Nothing ran."),
    _S.ANSWERED: ("💬 *Answered*", ", {at}. Nothing ran."),
    _S.EXPIRED: ("⌛ *Expired*", " {at}. Nothing ran."),
    _S.SUPERSEDED: (
        "⏩ *Superseded*",
        " {at}, because the conversation moved on. Nothing ran.",
    ),
    _S.WITHDRAWN: ("↩ *Withdrawn*", " {at}. Nothing ran."),
    _S.LAPSED: ("⌛ *Approved*", ", but the approval lapsed {at}. Nothing ran."),
}
"""What is said of a state before and after the names of who brought it there."""

_DOUBT_RESTORED: LiteralString = (
    " since {at}: its record was restored from an older copy, so it may have run. "
    "Please check, then say below."
)

_APPROVED = frozenset(
    {_S.AUTHORIZED, _S.EXECUTING, _S.EXECUTED, _S.FAILED, _S.IN_DOUBT, _S.LAPSED}
)
"""Where a call comes by an approval alone."""

_UNDECIDED = frozenset({_S.PENDING, _S.IN_DOUBT, _S.EXPIRED, _S.SUPERSEDED})
"""What people who voted did not bring about."""

NOTHING_RAN: LiteralString = "Nothing ran."
_HAD_STARTED: LiteralString = "It had been started, and does not go on."
_NOT_KNOWN: LiteralString = "Whether it ran before is not known."

LATE = "⌛ The time is over"
"""The headline while an approval is past its time and not yet closed."""


def what_ran(item: Item | Stale) -> LiteralString:
    """Return the sentence that is true in place of `NOTHING_RAN`.

    Args:
        item: a call in one of the states `UNEXECUTED`, or one that expires.
    """
    if item.is_restored:
        return _NOT_KNOWN
    return _HAD_STARTED if item.has_started else NOTHING_RAN


def header_text(approval: Approval, *, now_ms: int) -> Plain:
    """Return the header of a card: what the one call does, or how many there are."""
    sentence = headline(approval, now_ms=now_ms)
    sign = sentence.text.split()[0]
    if is_table(approval):
        # Where nothing waits, the sentence begins with a number.
        sign = "☑️" if sign.isdecimal() else sign
        tool, total = one_line(approval.items[0].tool), header_total(approval)
        room = min(MAX_TOOL, MAX_ACT - 15 - len(total))
        text = f"{sign} {len(approval.items)} calls: {fit(tool, room)}"
        return untrusted(f"{text} · {total}" if total else text)
    if approval.is_batch:
        return sentence
    return untrusted(f"{sign} {fit(call_title(approval.items[0]), MAX_ACT)}")


def status_label(approval: Approval, *, now_ms: int) -> list[Label]:
    """Return the state of a card's one call in a few words, to stand below its header.

    The header of a few calls says it already.
    """
    if approval.is_batch and not is_table(approval):
        return []
    sign, _, words = headline(approval, now_ms=now_ms).text.partition(" ")
    # Where nothing waits, the sentence begins with a number instead of a sign.
    return [label(f"{sign} {words}" if sign.isdecimal() else words)]


def headline(approval: Approval, *, now_ms: int) -> Label:
    """Return where an approval stands, behind a sign: fixed words and numbers."""
    waiting = sum(item.is_pending for item in approval.items)
    # The record is closed by the sweeper a moment later; until then its own state still
    # says that it is open.
    if waiting and is_over(approval, now_ms):
        return label(LATE)
    if not approval.is_batch:
        return _one(approval.items[0])
    doubts = sum(item.state is _S.IN_DOUBT for item in approval.items)
    if waiting:
        return _waiting(approval, waiting)
    if doubts:
        return label(f"❓ Please check {doubts} of {len(approval.items)} calls")
    return label(f"{len(approval.items)} calls: {state_counts(approval)}")


def _waiting(approval: Approval, waiting: int) -> Label:
    every = len(approval.items)
    if waiting < every:
        return label(f"⏳ Approval needed: {waiting} of {every} calls")
    # The header above a table says how many they are.
    many = "" if is_table(approval) else f": {every} calls"
    return label(f"⏳ Approval needed{many}")


def _one(item: Item) -> Label:
    need = counted_votes(item).need
    if item.is_pending and item.tier is Tier.DENY:
        return label("⛔ The policy no longer allows this")
    if item.is_pending and need > 1:
        return label(f"⏳ Approval needed from {need} people")
    head = HEADLINES[item.state]
    if item.has_failed:
        head = "❌ It failed. Run it again?"
    if item.state in UNEXECUTED and what_ran(item) is not NOTHING_RAN:
        what = "may have run before" if item.is_restored else "had been started"
        head = f"{head.removesuffix(', nothing ran')}; it {what}"
    if item.edit is not None:
        head = head.replace("Approved", "Approved with changes")
    return label(head)


def state_counts(approval: Approval) -> str:
    """Return how many items are in which state: "2 done, 1 rejected"."""
    counts = Counter(item.state for item in approval.items)
    words = UNREVIEWED_STATE_NAMES if approval.is_auto_approved else STATE_NAMES
    return ", ".join(
        f"{counts[state]} {words[state]}" for state in ItemState if counts[state]
    )


def status_sentence(approval: Approval, item: Item, *, now_ms: int) -> Template:
    """Return where one item stands, who brought it there and when."""
    if item.is_pending:
        return _pending(approval, item, now_ms=now_ms)
    head, tail = _STATUS_LINES[item.state]
    if item.has_failed:
        head, tail = "❌ *It failed*", " {at}. Please say below whether it runs again."
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


def taken_by(approval: Approval, *, now_ms: int) -> Template | None:
    """Return who said that they look at this; None when nobody does any more."""
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
    """Return whose word brought an item where it is: voters, or who decided it."""
    return [one.by for one in _signed(item)]


def is_own_edit(item: Item) -> bool:
    """Return whether the one person who edited a call is the one who approved it."""
    edit = item.edit
    return edit is not None and item.state in _APPROVED and approvers(item) == [edit.by]


def by_whom(item: Item) -> Template:
    """Name the same people, each with those in whose place they decided."""
    return join_list([_signature(one) for one in _signed(item)])


def _signed(item: Item) -> Sequence[Vote | DecisionRecord]:
    decision = item.decision
    if decision is not None and decision.verb in {Verb.REJECT, Verb.RESPOND}:
        return [decision]
    if item.state is _S.WITHDRAWN:
        return []
    # Votes for the call before an edit stay in the record, and did not bring it here.
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
    if is_dead_end(approval, item, item.requirement):
        stuck = template("⛔ *Nobody can approve this:* too few people may do it.")
        reject = template("It can be rejected.") if Verb.REJECT in item.allow else None
        ends = template("Expires {at}.", at=at)
        return joined(" ", [stuck, *([reject] if reject else []), ends])
    count = counted_votes(item)
    # A batch says once, at its head, when its time ends.
    until = [] if approval.is_batch else [template("Expires {at}.", at=at)]
    if count.have and count.is_met:
        by = joined(
            "", [template("⏳ "), approvals(item), template(", by "), by_whom(item)]
        )
        enough = template(". Nobody else is needed now: press *Approve* once more.")
        return joined(" ", [joined("", [by, enough]), *until])
    if count.have:
        have = joined("", [template("⏳ "), approvals(item), template(", by")])
        by = joined("", [by_whom(item), still_needed(item), template(".")])
        return joined(" ", [have, by, *until])
    waits = template("⏳ *Waiting for a reviewer*")
    if count.need > 1:
        waits = template("⏳ *Waiting for {need} reviewers*", need=count.need)
    waits = joined("", [waits, still_needed(item), template(".")])
    return joined(" ", [waits, *until])
