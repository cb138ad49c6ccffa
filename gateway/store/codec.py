"""Turn approvals into Redis fields and back.

What never changes is one JSON text (``frozen``); what a decision changes is one JSON
text an item (``<i>:d``); what scripts compare are small fields of the head hash.
"""

from __future__ import annotations

import json
from typing import cast

from pydantic import JsonValue

from gateway.approvals import digest
from gateway.approvals.lifecycle import ItemState
from gateway.approvals.record import Approval, Item, Result, Taken
from gateway.approvals.strict_json import JsonObject
from gateway.store.connection import number

_IN_HEAD = {"state", "changed_at_ms", "fence", "claimed_until_ms", "result"}
_IN_DETAIL = {
    "tier",
    "reasons",
    "demand",
    "action",
    "principals",
    "votes",
    "edit",
    "settlement",
}
_APPROVAL_IN_HEAD = {
    "version",
    "rev",
    "created_at_ms",
    "expires_at_ms",
    "reminded_at_ms",
    "escalated_at_ms",
    "taken",
}


def frozen(approval: Approval) -> str:
    """Return the JSON of everything that no decision changes."""
    rows = [
        item.model_dump(
            mode="json", exclude=_IN_HEAD | _IN_DETAIL, exclude_defaults=True
        )
        for item in approval.items
    ]
    record = approval.model_dump(
        mode="json", exclude={*_APPROVAL_IN_HEAD, "items"}, exclude_defaults=True
    )
    return json.dumps({**record, "items": rows}, ensure_ascii=False)


def detail(item: Item) -> str:
    """Return the JSON of what a decision may change in an item."""
    return item.model_dump_json(include=_IN_DETAIL, exclude_defaults=True)


def approval(head: dict[str, bytes], blobs: dict[str, bytes]) -> Approval:
    """Put a stored approval together again."""
    record = _object(blobs["frozen"])
    frozen_items = cast("list[JsonObject]", record["items"])
    taken = blobs.get("taken")
    items = [_item(index, row, head, blobs) for index, row in enumerate(frozen_items)]
    return Approval.model_validate(
        {
            **record,
            "rev": number(head["rev"]),
            "version": number(head["version"]),
            "created_at_ms": number(head["created"]),
            "expires_at_ms": number(head["expires"]),
            "reminded_at_ms": number(head.get("reminded")),
            "escalated_at_ms": number(head.get("escalated")),
            "taken": Taken.model_validate_json(taken) if taken else None,
            "items": items,
        }
    )


def _item(
    index: int,
    row: JsonObject,
    head: dict[str, bytes],
    blobs: dict[str, bytes],
) -> Item:
    result = blobs.get(f"{index}:r")
    stored = Item.model_validate(
        {
            **row,
            **_object(blobs[f"{index}:d"]),
            "state": ItemState(head[f"{index}:s"].decode()),
            "changed_at_ms": number(head.get(f"{index}:t")),
            "fence": number(head.get(f"{index}:f")),
            "claimed_until_ms": number(head.get(f"{index}:u")),
            "result": Result.model_validate_json(result) if result else None,
        }
    )
    if digest.to_raw(stored.action_hash) != head[f"{index}:h"]:
        # Whoever changed one without the other did not go through a decision.
        return stored.with_(state=ItemState.WITHDRAWN)
    return stored


def _object(text: bytes) -> dict[str, JsonValue]:
    return cast("dict[str, JsonValue]", json.loads(text))
