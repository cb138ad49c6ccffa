"""Modal that lists the calls which a standing approval covered, newest first."""

from __future__ import annotations

from collections.abc import Mapping

from twokey.bot.blocks import context, modal, section
from twokey.bot.cards.listing import call_title
from twokey.bot.cards.refs import when
from twokey.bot.cards.standing_card import left_text
from twokey.bot.cards.states import UNREVIEWED_STATE_NAMES
from twokey.bot.ids import View
from twokey.bot.objects import Block
from twokey.bot.text import fit
from twokey.bot.text_types import Label, Untrusted, label, template, untrusted
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.similar import Use, micro_text
from twokey.gateway.approvals.standing import bounds_of

MOST = 40
"""Calls on the list, the newest; Slack takes 100 blocks in a modal."""

_ACT = 200


def newest(approval: Approval) -> tuple[Use, ...]:
    """Return the uses that the list has, newest first."""
    return tuple(reversed(approval.uses[-MOST:]))


def view(approval: Approval, items: Mapping[str, Item]) -> Block:
    """Return the list; ``items`` are the calls that are still kept, by id."""
    has_amount = bool(bounds_of(approval).amount)
    shown = newest(approval)
    blocks = [context(label(f"{left_text(approval)}."))]
    if not shown:
        blocks.append(section(template("It has covered no call yet.")))
    for use in shown:
        item = items.get(use.item)
        blocks.append(section(_act(item)))
        amount = [label(micro_text(use.amount_micro))] if has_amount else []
        state = label(UNREVIEWED_STATE_NAMES[item.state] if item else "not kept")
        at = template("{at}", at=when(use.at_ms))
        blocks.append(context(at, *amount, state))
    more = len(approval.uses) - len(shown)
    if more > 0:
        blocks.append(context(label(f"{more} older ones are in the audit log.")))
    return modal(
        label("Uses"),
        blocks,
        callback_id=View.USES,
        close=label("Close"),
    )


def _act(item: Item | None) -> Untrusted | Label:
    if item is None:
        return label("A call that is kept no longer")
    return untrusted(fit(call_title(item), _ACT))
