"""Describe when the calls of a card expire, if they do not expire together."""

from __future__ import annotations

from typing import LiteralString

from keyturn.bot.cards.refs import when
from keyturn.bot.cards.table import numbers_ref
from keyturn.bot.text import Template, joined, template
from keyturn.gateway.approvals.collected import is_collected
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.timing import ends

_NAMED = 3
"""Maximum number of expiry times with their calls in one line."""


_VERBS: tuple[LiteralString, ...] = ("expires", "waits until")


def saying_when(said: LiteralString, approval: Approval) -> Template:
    """Complete a sentence with ``It expires {at}`` or ``It waits until {at}``.

    If the calls end at different times, the sentence is about the first.
    """
    if len(ends(approval)) > 1:
        said = said.replace(", and then nothing runs", "")
        for verb in _VERBS:
            said = said.replace(f"It {verb}", f"The first of its calls {verb}")
    return template(said, at=when(approval.expires_at_ms))


def expires_each(approval: Approval) -> list[Template]:
    """Return when the pending calls of a batch expire; empty if none is pending."""
    each = [*ends(approval).items()]
    if len(each) < 2:  # noqa: PLR2004 all together
        return [template("Expires {at}.", at=when(end_ms)) for end_ms, _ in each]
    if is_collected(approval):
        # The calls arrived moments apart.
        return [template("The first expires {at}.", at=when(each[0][0]))]
    said: list[Template] = []
    for end_ms, items in each[:_NAMED]:
        noun: LiteralString = "calls" if len(items) > 1 else "call"
        head = template("Expires {at}: " + noun, at=when(end_ms))
        said.append(joined(" ", [head, numbers_ref(item.index for item in items)]))
    if len(each) > _NAMED:
        said.append(template("The others expire later."))
    return said
