"""A waiting call that an older version stored is decided as one of this version is."""

from __future__ import annotations

import json

from tests.service.harness import ANA, ServiceHarness
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.store.connection import text
from twokey.gateway.store.store import Store


async def test_a_call_whose_requirement_has_its_older_name_is_decided(
    store: Store,
) -> None:
    harness = ServiceHarness(store)
    click, claim = await harness.refund()
    blobs = store.keys_of_tenant("default").blobs(click.approval)
    detail = json.loads(text(await store.conn.command("HGET", blobs, "0:d")))
    detail["demand"] = detail.pop("requirement")
    detail["floor"] = {
        "tier": "approve",
        "reasons": [],
        "demand": detail["demand"],
        "policy_digest": harness.policy.digest,
    }
    await store.conn.command("HSET", blobs, "0:d", json.dumps(detail))
    await store.conn.command("HDEL", blobs, "format")

    outcome = await harness.reviews.decide(click, Approve(), ANA)

    assert outcome.kind == "decided"
    assert (await harness.item(claim.item_id)).state is ItemState.AUTHORIZED
