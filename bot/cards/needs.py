"""Say in words who has to approve a call, and why."""

from __future__ import annotations

import re
from typing import LiteralString

from twokey.bot.cards.votes import counted_votes
from twokey.bot.text_types import Template, joined, template
from twokey.gateway.approvals.record import Item
from twokey.gateway.protocol.tiers import Tier

_PEOPLE: dict[int, LiteralString] = {
    1: "One person",
    2: "Two people",
    3: "Three people",
    4: "Four people",
    5: "Five people",
    6: "Six people",
}
# What the gateway writes before the words of a policy, or of a problem.
_RAISED = re.compile(r"(?:Raised to [a-z]+(?:, and needs \S+)?|Needs \S+): ")


def needs(item: Item) -> Template:
    """Return who has to approve a call, such as "Two people have to approve"."""
    if item.cover is not None:
        return template("*No review needed*: a standing approval covers it")
    if item.tier.is_auto_approved:
        return template("*No review needed*")
    if item.tier is Tier.DENY:
        return template("⛔ *Not allowed*")
    need = counted_votes(item).need
    verb: LiteralString = "had to approve"
    if item.is_pending:
        verb = "has to approve" if need == 1 else "have to approve"
    if need not in _PEOPLE:
        return template("*{n} people " + verb + "*", n=need)
    return template("*" + _PEOPLE[need] + " " + verb + "*")


def is_usual(item: Item) -> bool:
    """Return whether a call needs what each call of its tool needs: one person.

    The first reason is the tier that the policy lists, which says nothing of this call.
    """
    return item.tier is Tier.APPROVE and not item.reasons[1:]


def why(item: Item) -> str:
    """Return the reasons that are about this call; "" where there are none."""
    return " · ".join(map(without_tier, item.reasons[1:]))


def because(words: Template, reasons: str) -> Template:
    """Return words with what leads over to their reasons, where there are any."""
    return joined("", [words, template(", because:")]) if reasons else words


def without_tier(reason: str) -> str:
    """Return a reason without the tier or requirement that stands before it."""
    return _RAISED.sub("", reason, count=1) if _RAISED.match(reason) else reason
