"""Say how many of the people whose word a call needs have given it, and who lacks."""

from __future__ import annotations

from bot.blocks import Ref, Template, code, joined, template
from gateway.approvals.quorum import Tally, tally
from gateway.approvals.record import Item


def counted_votes(item: Item) -> Tally:
    """Return how far the call is, for exactly what would run now."""
    return tally(item.demand, item.votes, item.action_hash)


def lacking(item: Item) -> str:
    """Return which roles still have to agree: "1 from senior"; "" for none."""
    count = counted_votes(item)
    return ", ".join(f"{need} from {role}" for role, need in count.lacking.items())


def still_needed(item: Item) -> Template:
    """Return "; 1 from senior still needed" once the number alone says too much.

    So it is when as many people as needed have agreed, and a role has not.
    """
    count = counted_votes(item)
    if count.is_met or count.have < count.need:
        return template("")
    parts = [
        joined("", [template("{n} from ", n=missing), _roles(names)])
        for names, missing in count.lacking.items()
    ]
    lack = joined(", ", parts)
    return joined("", [template("; "), lack, template(" still needed")])


def _roles(names: str) -> Template:
    """Name one role, or several of which one is enough."""
    named = [template("{role}", role=_role(name)) for name in names.split(" or ")]
    return joined(" or ", named)


def _role(name: str) -> Ref:
    try:
        return code(name)
    except ValueError:
        return code("another-role")
