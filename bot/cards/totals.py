"""Totals of the calls on one card: of all of them, or of a person's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.policy.formats import Call, Total, total_of
from keyturn.gateway.protocol.strict_json import JsonObject

MAX_IN_HEADER = 60
"""Maximum characters of a total in a header; a longer one is only below it."""

_NO_EDITS: dict[int, JsonObject] = {}


def totals_of(
    approval: Approval, edits: Mapping[int, JsonObject] = _NO_EDITS
) -> list[Total]:
    """Return the totals that the policy permits, over the current arguments.

    Args:
        approval: the calls to add up.
        edits: by index, the arguments of a person's edit.
    """
    calls = [
        Call(item.index, edits.get(item.index, item.args), item.redact)
        for item in approval.items
    ]
    # An argument of several tools is added up for each tool, see below.
    if len({item.tool for item in approval.items}) > 1:
        return []
    return [total_of(one, calls) for one in _named(approval.items)]


def totals_by_tool(approval: Approval) -> list[tuple[str, list[Total]]]:
    """Return the totals of each tool with two calls, on a card with several tools."""
    tools: dict[str, list[Item]] = {}
    for item in approval.items:
        tools.setdefault(item.tool, []).append(item)
    if len(tools) == 1:
        return []
    return [
        (tool, [total_of(one, calls) for one in _named(items)])
        for tool, items in tools.items()
        for calls in ([Call(item.index, item.args, item.redact) for item in items],)
        if len(items) > 1
    ]


def _named(items: Sequence[Item]) -> list[str]:
    """Return the totals of calls; for several policies those that all of them name."""
    return [one for one in items[0].totals if all(one in item.totals for item in items)]


def total_text(total: Total) -> str:
    """Return a total as a phrase: "€2,744.00 in total"."""
    text = total.text()
    if total.format == "number":
        # A bare number needs the argument's name.
        text = f"{total.name} {text}"
    counted = f"{len(total.numbers)} of them" if total.left_out else "total"
    return f"{text} in {counted}"


def header_total(approval: Approval) -> str:
    """Return the first total for a header; "" if there is none or it is long."""
    first = next(iter(totals_of(approval)), None)
    text = (
        total_text(first).removesuffix(" in total") if first and first.numbers else ""
    )
    return text if len(text) <= MAX_IN_HEADER else ""


def sums(totals: Sequence[Total], indexes: AbstractSet[int]) -> str:
    """Return the sums of these calls by total, with the number of omitted calls."""
    parts: list[str] = []
    for total in totals:
        counted = indexes & {*total.numbers}
        if not counted:
            continue
        left = len(indexes) - len(counted)
        text = f"{total.name} {total.text(counted)}"
        parts.append(f"{text} (without {left} of them)" if left else text)
    return " · ".join(parts)
