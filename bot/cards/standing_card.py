"""Render the card of a standing approval: its bounds, the remainder, Revoke.

All calls that it covers share this card. A separate card appears only for a call whose
worker stopped while it ran. Arguments that have to be equal are in boxes.
"""

from __future__ import annotations

from typing import LiteralString

from keyturn.bot.blocks import (
    Block,
    Message,
    actions,
    box,
    confirm,
    context,
    header,
    rich_text,
    section,
)
from keyturn.bot.cards.approval import metadata
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.listing import Listing, boxes, fitted
from keyturn.bot.cards.mentions import mentions_for
from keyturn.bot.cards.needs import approvals, still_needed
from keyturn.bot.cards.refs import people, short_ref, when, who
from keyturn.bot.ids import Action
from keyturn.bot.text import Plain, Template, code, fit, joined, label, template
from keyturn.bot.text import untrusted as untrusted_text
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.similar import Bounds, micro_text
from keyturn.gateway.approvals.standing import bounds_of, givers, left_of, used_micro
from keyturn.gateway.protocol.records import ItemState, Tier

_NAME = 60
_EQUAL = 2_000
_MOST_PATHS = 12
_PATH = 60
_S = ItemState
_TITLES: dict[ItemState, LiteralString] = {
    _S.PENDING: "🔁 Allow similar calls?",
    _S.AUTHORIZED: "🔁 Similar calls are allowed",
    _S.REJECTED: "🚫 Similar calls are not allowed",
    _S.EXPIRED: "⌛ Similar calls are not allowed",
    _S.LAPSED: "⏹ Similar calls are no longer allowed",
}
_NOT_GIVEN: LiteralString = "↩ Similar calls are not allowed"


def standing_card(frame: Frame) -> Message:
    """Return the current card of a standing approval."""
    approval = frame.approval
    item, bounds = approval.items[0], bounds_of(approval)
    equal = _equal(bounds)
    # An ended one shows its end instead of its bounds.
    is_over = not (item.is_pending or item.state is _S.AUTHORIZED)
    blocks = [
        header(label(title(item))),
        section(
            untrusted_text(f"{fit(bounds.tool, _NAME)}, by {fit(bounds.agent, _NAME)}")
        ),
        *_asked(frame, item),
        *([] if is_over else _allowed(bounds, equal)),
        section(_state(frame, item)),
        *_why(item),
    ]
    offered = _buttons(frame, item, is_whole=equal.is_complete)
    if offered:
        blocks.append(actions(*offered))
    ids = template("{id}", id=short_ref(approval.id))
    blocks.append(context(ids))
    return Message(tuple(blocks), card_fallback(approval), metadata(approval))


_EQUAL_HEAD: LiteralString = "*Calls with exactly these arguments:*"


def title(item: Item) -> LiteralString:
    """Return the title of the card."""
    return _TITLES.get(item.state, _NOT_GIVEN)


def _allowed(bounds: Bounds, equal: Listing) -> list[Block]:
    boxes = [box(text) for text in equal.boxes]
    return [
        section(template(_EQUAL_HEAD)),
        rich_text(*boxes),
        context(*limits(bounds)),
    ]


def limits(bounds: Bounds) -> list[Template | Plain]:
    """Return the limits in words, one per part."""
    free = [fit(path.removeprefix("args."), _PATH) for path in bounds.may_differ]
    more = len(free) - _MOST_PATHS
    named = ", ".join(free[:_MOST_PATHS]) + (f" and {more} more" if more > 0 else "")
    parts: list[Template | Plain] = []
    if free:
        parts.append(label(f"These may be anything: {named}."))
    if bounds.amount:
        amount = bounds.amount.removeprefix("args.")
        each, total = micro_text(bounds.each_micro), micro_text(bounds.total_micro)
        parts.append(label(f"{amount}: at most {each} each, {total} in all."))
    parts.append(label(f"At most {_calls(bounds.uses)}."))
    parts.append(template("Until {at}.", at=when(bounds.until_ms)))
    parts.append(
        label("Escalated calls still go to people; denied and frozen ones do not run.")
    )
    return parts


def left_text(approval: Approval) -> str:
    """Return the remaining calls and amount, in words."""
    bounds = bounds_of(approval)
    uses, total = left_of(approval)
    words = f"{uses} of {_calls(bounds.uses)} left"
    if not bounds.amount:
        return words
    return f"{words}, {micro_text(total)} of {micro_text(bounds.total_micro)}"


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


def _equal(bounds: Bounds) -> Listing:
    return fitted(boxes(bounds.tool, bounds.equal, ()), budget=_EQUAL)


def _asked(frame: Frame, item: Item) -> list[Block]:
    if frame.is_late or not item.is_pending:
        return []
    whom = mentions_for(frame.approval)
    if not whom.roles:
        return []
    sentence = whom.before(template("please decide:"))
    return [section(sentence)]


def _state(frame: Frame, item: Item) -> Template:
    approval = frame.approval
    if item.is_pending:
        return _waiting(frame, item)
    at = when(item.changed_at_ms)
    if item.state is _S.AUTHORIZED:
        uses, _ = left_of(approval)
        by = people(givers(approval))
        given = joined(
            "",
            [template("✅ *Given* by "), by, template(", {at}.", at=at)],
        )
        bounds = bounds_of(approval)
        left = template("*{n} of {of} left.*", n=uses, of=bounds.uses)
        return joined(" ", [given, left, *_amount_left(approval)])
    parts = [_ended(item)]
    if approval.uses:
        parts.append(template("Calls that it covered: {n}.", n=len(approval.uses)))
    return joined(" ", parts)


def _ended(item: Item) -> Template:
    at, why = when(item.changed_at_ms), item.revoked
    if item.state is _S.REJECTED and item.decision:
        return template(
            "🚫 *Rejected* by {who}, {at}.", who=who(item.decision.by), at=at
        )
    if why is not None and why.by is not None:
        return template("⏹ *Revoked* by {who}, {at}.", who=who(why.by), at=at)
    if item.state is _S.LAPSED and why is None:
        return template("⏹ *Ended* {at}: the time is over.", at=at)
    return template("⏹ *Ended* {at}.", at=at)


def _why(item: Item) -> list[Block]:
    revoked = item.revoked
    if revoked is None or revoked.by is not None:
        return []
    return [context(label(revoked.reason))]


def _amount_left(approval: Approval) -> list[Template]:
    bounds = bounds_of(approval)
    if not bounds.amount:
        return []
    used = code(micro_text(used_micro(approval)))
    total = code(micro_text(bounds.total_micro))
    return [template("Used so far: {used} of {total}.", used=used, total=total)]


def _waiting(frame: Frame, item: Item) -> Template:
    at = when(frame.approval.expires_at_ms)
    if frame.is_late:
        return template(
            "⌛ *The time to decide ended* {at}. Nothing is allowed.", at=at
        )
    if item.tier is Tier.DENY:
        return template("🚫 *No longer allowed by the policy.*")
    return joined(
        "",
        [
            template("⏳ *Waiting* until {at}: ", at=at),
            approvals(item),
            still_needed(item),
            template("."),
        ],
    )


def _buttons(frame: Frame, item: Item, *, is_whole: bool) -> list[Block]:
    if item.state is _S.AUTHORIZED:
        return [_revoke(frame), _uses(frame)]
    if not item.is_pending:
        return [_uses(frame)] if frame.approval.uses else []
    if frame.is_late:
        return []
    reject = frame.button(
        0,
        Action.REJECT,
        label("Reject"),
        style="danger",
        accessibility_label=label("Reject: similar calls still need approval"),
    )
    approve = frame.button(
        0,
        Action.APPROVE,
        label("Allow"),
        style="primary",
        accessibility_label=label("Allow similar calls within these limits"),
    )
    # People must not allow calls that the card does not show.
    return [approve, reject] if is_whole and item.tier is not Tier.DENY else [reject]


def _revoke(frame: Frame) -> Block:
    return frame.button(
        0,
        Action.REVOKE,
        label("Revoke"),
        style="danger",
        accessibility_label=label("Revoke: similar calls need approval again"),
        confirm=confirm(
            label("Revoke the standing approval?"),
            label(
                "Similar calls need approval again. Calls that have not started end."
            ),
            yes=label("Revoke"),
        ),
    )


def _uses(frame: Frame) -> Block:
    count = len(frame.approval.uses)
    return frame.button(
        0,
        Action.USES,
        label(f"Uses ({count})"),
        accessibility_label=label("List the covered calls"),
    )
