"""Describe in words the approvals a call needs, the reasons, and the votes so far."""

from __future__ import annotations

import re
from typing import LiteralString

from keyturn.bot.text import (
    Ref,
    Template,
    Untrusted,
    code,
    fit,
    joined,
    template,
    untrusted,
)
from keyturn.gateway.approvals.quorum import Tally, tally
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.protocol.records import Tier

_PEOPLE: dict[int, LiteralString] = {
    1: "one person",
    2: "two people",
    3: "three people",
    4: "four people",
    5: "five people",
    6: "six people",
}
# The gateway's prefix before the words of a policy, or of a problem.
_RAISED = re.compile(r"(?:Raised to [a-z]+(?:, and needs \S+)?|Needs \S+): ")


def needs(item: Item) -> Template:
    """Return the approvals that a call needs, such as "Needs two people"."""
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
    """Return whether a call needs one person, the usual requirement of its tool.

    The first reason is the policy's tier of the tool, which is not about this call.
    """
    return item.tier is Tier.APPROVE and not item.reasons[1:]


def why(item: Item) -> str:
    """Return the reasons that are about this call; "" if there are none."""
    return " · ".join(map(without_tier, item.reasons[1:]))


def because(words: Template, reasons: str, most: int) -> Template | Untrusted:
    """Return words and their reasons, cut to ``most`` characters, as one sentence.

    Plain text if there are reasons, because Slack separates the parts of a line.
    """
    if not reasons:
        return words
    return untrusted(f"{words.text.replace('*', '')}: {fit(reasons, most)}")


def without_tier(reason: str) -> str:
    """Return a reason without the tier or requirement before it."""
    return _RAISED.sub("", reason, count=1) if _RAISED.match(reason) else reason


_MAX_NAMES = 3
"""Maximum roles and parts of a requirement in one line; the rest is "others"."""
_MAX_NAME_CHARS = 32
"""Maximum characters of a role's name."""


def counted_votes(item: Item) -> Tally:
    """Return the tally of a call, for exactly its current version."""
    return tally(item.requirement, item.votes, item.action_hash)


def votes_missing(item: Item) -> int:
    """Return the minimum number of people who still have to approve."""
    count = counted_votes(item)
    return max(count.need - count.have, sum(count.lacking.values()))


def approvals(item: Item) -> Template:
    """Return "1 of 2 approvals", or "2 approvals" once their number suffices."""
    have, need = counted_votes(item).have, counted_votes(item).need
    if have < need:
        return template("*{have} of {need} approvals*", have=have, need=need)
    if have == 1:
        return template("*1 approval*")
    return template("*{have} approvals*", have=have)


def so_far(item: Item) -> Template:
    """Return "1 of 2", or "2 so far" if the number is met and a role is missing."""
    count = counted_votes(item)
    if count.have < count.need or count.is_met:
        return template("{have} of {need}", have=count.have, need=count.need)
    return template("{have} so far", have=count.have)


def still_needed(item: Item) -> Template:
    """Return "; still needs 1 from senior" while votes of a role are missing.

    Before the first approval it is ", including 1 from senior".
    """
    count = counted_votes(item)
    parts = list(count.lacking.items())
    if not parts:
        return template("")
    lacking = [
        joined("", [template("{n} from ", n=missing), _roles(names)])
        for names, missing in parts[:_MAX_NAMES]
    ]
    more = [template("others")] if parts[_MAX_NAMES:] else []
    lack = joined(" and ", [*lacking, *more])
    if count.have:
        return joined("", [template("; still needs "), lack])
    is_all = sum(count.lacking.values()) >= count.need
    return joined("", [template(": " if is_all else ", including "), lack])


def roles_of(requirement: Requirement) -> Template:
    """Name the roles whose holders may vote."""
    return _roles(" or ".join(role.name for role in requirement.roles))


def _roles(names: str) -> Template:
    """Name one role, or several alternatives."""
    # `Tally.lacking` joins names like this; a role's name has no space (`RoleName`).
    roles = names.split(" or ")
    named = [named_role(name) for name in roles[:_MAX_NAMES]]
    more = [template("others")] if roles[_MAX_NAMES:] else []
    return joined(" or ", [*named, *more])


def named_role(name: str) -> Template:
    """Name a role, cut to fit in a line of a card."""
    return template("{role}", role=_role(name))


def _role(name: str) -> Ref:
    shown = name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 2]}.."
    try:
        return code(shown)
    except ValueError:
        return code("another-role")
