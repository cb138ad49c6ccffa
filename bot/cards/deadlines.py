"""Say when the calls of a card expire, where they do not all expire together."""

from __future__ import annotations

from typing import LiteralString

from keyturn.bot.cards.refs import when
from keyturn.bot.cards.table import numbers_ref
from keyturn.bot.text import Template, joined, template
from keyturn.gateway.approvals.collected import is_collected
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.timing import ends

_NAMED = 3
"""How many ends are named with their calls; more would be a list and no line."""


_VERBS: tuple[LiteralString, ...] = ("expires", "waits until")


def saying_when(said: LiteralString, approval: Approval) -> Template:
    """Return a sentence about a card that says ``It expires {at}`` or ``It waits``."""
    if len(ends(approval)) > 1:
        said = said.replace(", and then nothing runs", "")
        for verb in _VERBS:
            said = said.replace(f"It {verb}", f"The first of its calls {verb}")
    return template(said, at=when(approval.expires_at_ms))


def expires_each(approval: Approval) -> list[Template]:
    """Return when the calls of a batch expire that wait; nothing when none does."""
    each = [*ends(approval).items()]
    if len(each) < 2:  # noqa: PLR2004 all together
        return [template("Expires {at}.", at=when(end_ms)) for end_ms, _ in each]
    if is_collected(approval):
        # Each came a moment after the other.
        return [template("The first expires {at}.", at=when(each[0][0]))]
    said: list[Template] = []
    for end_ms, items in each[:_NAMED]:
        noun: LiteralString = "calls" if len(items) > 1 else "call"
        head = template("Expires {at}: " + noun, at=when(end_ms))
        said.append(joined(" ", [head, numbers_ref(item.index for item in items)]))
    if len(each) > _NAMED:
        said.append(template("The others expire later."))
    return said
