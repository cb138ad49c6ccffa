"""What is left out of a stored record comes back as it was, or stays in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.harness import ServiceHarness
from tests.stored_records import detail, pinned
from twokey.gateway.protocol import digest
from twokey.gateway.store.derived import completed, shortened
from twokey.gateway.store.store import Store

RECORD: dict[str, Any] = {
    "id": "ap_s0_" + "0" * 32,
    "tenant": "default",
    "agent": "support",
    "thread": "t1",
    "message_id": "m1",
}
CTX = {
    "tenant": "default",
    "agent": "support",
    "thread": "t1",
    "ns": "",
    "message_id": "m1",
    "tool_call_id": "call-1",
}


def row(args: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the row of an item as it is before anything is left out."""
    requested = digest.action_document(
        tool="refund", args=args, ctx=CTX, salt="0123456789abcdef" * 2
    )
    whole = {"id": RECORD["id"] + ".0", "index": 0, "ctx": CTX, "tool": "refund"}
    return {**whole, "requested": requested, "effect": "e", **changes}


@pytest.mark.parametrize(
    "args",
    [
        {},
        {
            "amount": 10.5,
            "tiny": 1e-300,
            "whole": 1.0,
            "zero": -0.0,
            "large": 2**53 - 1,
        },
        {"text": 'quotes "\\ and \u2028 \U0001f600', "nested": [{"tool": "x"}, None]},
        {"ctx": {"tenant": "other"}, "asked": 1, "call": "c", "b": True},
    ],
)
def test_an_action_comes_back_byte_for_byte(args: dict[str, Any]) -> None:
    whole = row(args)

    short = shortened(RECORD, 0, whole)

    assert "requested" not in short
    assert "ctx" not in short
    # As it is stored: through JSON.
    assert completed(RECORD, 0, json.loads(json.dumps(short))) == whole


@pytest.mark.parametrize(
    "change",
    [
        {"requested": row({"amount": 1})["requested"].replace(":", ": ")},
        {"tool": "another"},
        {"id": "ap_s0_" + "1" * 32 + ".0"},
        {"index": 1},
        {"ctx": {**CTX, "thread": "another"}},
        {"ctx": {**CTX, "tool_call_id": "another"}},
    ],
)
def test_what_does_not_follow_from_the_rest_stays_in(change: dict[str, Any]) -> None:
    whole = row({"amount": 1}, **change)

    assert shortened(RECORD, 0, whole) == whole
    assert completed(RECORD, 0, whole) == whole


async def test_a_changed_detail_holds_as_a_whole(store: Store) -> None:
    """What it leaves out has its default again, whatever was known at the opening."""
    harness = ServiceHarness(store)
    click, _ = await harness.refund()
    keys = store.keys_of_tenant("default")
    assert (await pinned(store.conn, keys, click.approval))["items"][0]["effect"]
    changed = await detail(store.conn, keys, click.approval)
    del changed["effect"]

    await store.conn.command(
        "HSET", keys.head(click.approval), "0:d", json.dumps(changed)
    )

    assert (await harness.item(f"{click.approval}.0")).effect == ""
