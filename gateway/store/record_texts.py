"""Serialize the large fields of an approval that a decision may change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from operator import attrgetter, is_not

from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.records import Record

IN_DETAIL = {
    "tier",
    "reasons",
    "description",
    "agent_description",
    "link",
    "requirement",
    "floor",
    "effect",
    "repeats_seen_ms",
    "too_soon",
    "spot_check",
    "action",
    "principals",
    "votes",
    "edit",
    "edit_signed",
    "decision",
    "revoked",
    "observations",
    "finding",
}


_in_detail = attrgetter(*IN_DETAIL)


def detail(item: Item) -> str:
    """Return the JSON of what a decision may change in an item."""
    included = IN_DETAIL - same_action(item)
    return item.model_dump_json(include=included, exclude_defaults=True)


def same_action(item: Item) -> set[str]:
    """Return which field of an item is not stored, because another one has it."""
    # The request has the same text: only another action is stored beside it.
    return {"action"} if item.action == item.requested else set()


def changed_texts(
    before: Approval, after: Approval, moved: Iterable[tuple[Item, Item]]
) -> dict[str, str | bool]:
    """Return the large fields to write, as `changed` does.

    Args:
        before: as it was.
        after: as it becomes.
        moved: items that may differ, as they were and as they become.
    """
    # What a change leaves alone is the same object (`with_` copies no members): its
    # JSON is not made to find that it is equal.
    found: dict[str, str | bool] = {}
    for name in ("acknowledged", "remarks", "inquiries", "uses"):
        if getattr(before, name) is not (now := getattr(after, name)):
            found[name] = _json(now) if now else False
    for was, now in moved:
        if any(map(is_not, _in_detail(was), _in_detail(now))):
            found[f"{now.index}:d"] = detail(now)
        for key, name in (("r", "result"), ("late", "late_result")):
            if getattr(was, name) is not (result := getattr(now, name)):
                found[f"{now.index}:{key}"] = _json(result) if result else False
    return found


def uses(approval: Approval) -> str:
    """Return the JSON of what a standing approval was used for."""
    return _json(approval.uses)


def _json(found: Record | Sequence[Record]) -> str:
    if isinstance(found, Record):
        return found.model_dump_json()
    rows = [one.model_dump(mode="json") for one in found]
    return json.dumps(rows, ensure_ascii=False)
