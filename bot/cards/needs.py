"""Say in words who has to approve a call, and why."""

from __future__ import annotations

import re
from typing import LiteralString

from keyturn.bot.cards.votes import counted_votes
from keyturn.bot.text import Template, Untrusted, fit, template, untrusted
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.tiers import Tier

_PEOPLE: dict[int, LiteralString] = {
    1: "one person",
    2: "two people",
    3: "three people",
    4: "four people",
    5: "five people",
    6: "six people",
}
# What the gateway writes before the words of a policy, or of a problem.
_RAISED = re.compile(r"(?:Raised to [a-z]+(?:, and needs \S+)?|Needs \S+): ")


def needs(item: Item) -> Template:
    """Return who has to approve a call, such as "Needs two people"."""
    if item.cover is not None:
        return template("*No review needed*: a standing approval covers it")
    if item.tier.is_auto_approved:
        return template("*No review needed*")
    if item.tier is Tier.DENY:
        return template("⛔ *Not allowed*")
    need = counted_votes(item).need
    verb: LiteralString = "Needs " if item.is_pending else "Needed "
    if need not in _PEOPLE:
        return template("*" + verb + "{n} people*", n=need)
    return template("*" + verb + _PEOPLE[need] + "*")


def is_usual(item: Item) -> bool:
    """Return whether a call needs what each call of its tool needs: one person.

    The first reason is the tier that the policy lists, which says nothing of this call.
    """
    return item.tier is Tier.APPROVE and not item.reasons[1:]


def why(item: Item) -> str:
    """Return the reasons that are about this call; "" where there are none."""
    return " · ".join(map(without_tier, item.reasons[1:]))


def because(words: Template, reasons: str, most: int) -> Template | Untrusted:
    """Return words and their reasons, cut to ``most`` characters, as one sentence.

    Plain text where there are reasons: Slack sets parts of a line apart.
    """
    if not reasons:
        return words
    return untrusted(f"{words.text.replace('*', '')}: {fit(reasons, most)}")


def without_tier(reason: str) -> str:
    """Return a reason without the tier or requirement that stands before it."""
    return _RAISED.sub("", reason, count=1) if _RAISED.match(reason) else reason
