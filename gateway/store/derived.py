"""Leave out of the stored row of an item what follows from its record.

The action document of a request repeats its tool and its context, and these repeat the
record. What is put back is the same text: where it would not be, nothing is left out.
"""

from __future__ import annotations

from twokey.gateway.approvals.record import item_id
from twokey.gateway.errors import BadJson
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.strict_json import JsonObject, parse_object
from twokey.gateway.store.keys import HALF

_CALL, _ASKED = "call", "asked"
_OF_RECORD = ("tenant", "agent", "thread", "ns", "message_id")
_LEFT_OUT = {"id", "index", "ctx", "requested"}


def has_turns_id(record: JsonObject) -> bool:
    """Return whether the id of a record follows from its turn."""
    names = {name: str(record.get(name, "")) for name in _OF_RECORD}
    half = digest.turn_key(**names).removeprefix("sha256:")[:HALF]
    return str(record["id"]).rpartition("_")[2] == half


def shortened(record: JsonObject, index: int, row: JsonObject) -> JsonObject:
    """Return the row of an item for `completed`, without what the record says."""
    ctx, kept = row["ctx"], {k: v for k, v in row.items() if k not in _LEFT_OUT}
    asked = parse_object(str(row["requested"]))
    short: JsonObject = {
        **kept,
        _CALL: ctx["tool_call_id"] if isinstance(ctx, dict) else "",
        _ASKED: {k: v for k, v in asked.items() if k not in {"tool", "ctx"}},
    }
    return short if completed(record, index, short) == row else row


def completed(record: JsonObject, index: int, row: JsonObject) -> JsonObject:
    """Return the whole row of an item.

    Raises:
        KeyError: when it lacks something.
        BadJson: when what was asked for is no strict JSON.
    """
    if _ASKED not in row:
        return row
    kept, asked = dict(row), row[_ASKED]
    call = kept.pop(_CALL)
    del kept[_ASKED]
    if not isinstance(asked, dict):
        raise BadJson("what was asked for is not an object")
    ctx: JsonObject = {name: record.get(name, "") for name in _OF_RECORD}
    ctx["tool_call_id"] = call
    requested = digest.canonical({**asked, "tool": row["tool"], "ctx": ctx}).decode()
    return {
        "id": item_id(str(record["id"]), index),
        "index": index,
        "ctx": ctx,
        "requested": requested,
        # Last: a row that names any of these itself is compared as it stands.
        **kept,
    }
