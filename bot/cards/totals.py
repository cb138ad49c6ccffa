"""Totals of the calls on one card: of all of them, or of what a person chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from twokey.gateway.approvals.record import Approval
from twokey.gateway.policy.totals import Call, Total, total_of
from twokey.gateway.protocol.strict_json import JsonObject

MAX_IN_HEADER = 60
"""Characters of a header for a total; a longer one stands below it only."""

_NO_EDITS: dict[int, JsonObject] = {}


def totals_of(
    approval: Approval, edits: Mapping[int, JsonObject] = _NO_EDITS
) -> list[Total]:
    """Return what the policy lets the card add up, over what would run.

    Args:
        approval: whose calls are added up.
        edits: by index, arguments that a person chose instead.
    """
    calls = [
        Call(item.index, edits.get(item.index, item.args), item.redact)
        for item in approval.items
    ]
    # Calls that were evaluated by several policies: what all of these name.
    named = [
        one
        for one in approval.items[0].totals
        if all(one in item.totals for item in approval.items)
    ]
    return [total_of(one, calls) for one in named]


def total_text(total: Total) -> str:
    """Return a total as a phrase: "€2,744.00 in total"."""
    text = total.text()
    if total.format == "number":
        # A bare number would not say what it is the number of.
        text = f"{total.name} {text}"
    left = len(total.hidden) + len(total.without)
    return f"{text} in {len(total.numbers)} of them" if left else f"{text} in total"


def header_total(approval: Approval) -> str:
    """Return the first total for a header; "" where there is none or it is long."""
    first = next(iter(totals_of(approval)), None)
    text = total_text(first) if first and first.numbers else ""
    return text if len(text) <= MAX_IN_HEADER else ""


def sums(totals: Sequence[Total], indexes: AbstractSet[int]) -> str:
    """Return what these calls come to by each total, and how many it leaves out."""
    parts: list[str] = []
    for total in totals:
        counted = indexes & {*total.numbers}
        if not counted:
            continue
        left = len(indexes) - len(counted)
        text = f"{total.name} {total.text(counted)}"
        parts.append(f"{text} (without {left} of them)" if left else text)
    return " · ".join(parts)
