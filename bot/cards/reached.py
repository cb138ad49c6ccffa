"""Render who got a direct message, and who is not asked in their quiet hours."""

from __future__ import annotations

from twokey.bot.blocks import context
from twokey.bot.cards.frame import Frame
from twokey.bot.cards.mentions import is_for_people, quiet_roles
from twokey.bot.cards.refs import join_list, places, when
from twokey.bot.objects import Block
from twokey.bot.text import fit
from twokey.bot.text_types import Label, Template, label, template, user

_ROLES = 80


def reached(frame: Frame) -> list[Block]:
    """Return a line about those whom mentions do not reach; on a copy, of its card."""
    if not any(is_for_people(item) for item in frame.approval.items):
        return []
    parts: list[Template | Label] = []
    if frame.card_in:
        parts += [label("✉️ Sent to you directly. The card is in")]
        parts += places([frame.card_in])
    elif frame.sent:
        people = join_list([template("{who}", who=user(one)) for one in frame.sent])
        parts += [template("✉️ Sent directly to"), people]
    quiet = quiet_roles(frame.approval)
    if quiet:
        names = label(fit(", ".join(sorted(quiet)), _ROLES))
        first_ms = min(quiet.values())
        parts.append(template("🌙 Quiet hours until {at}:", at=when(first_ms)))
        parts.append(names)
    return [context(*parts, block_id=frame.block_id("reached"))] if parts else []
