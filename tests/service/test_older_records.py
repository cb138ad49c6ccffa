"""A waiting call that an older version stored is decided as one of this version is."""

from __future__ import annotations

import json

from tests.service.harness import ANA, ServiceHarness
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.approvals.events import Event, EventName
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


async def test_a_call_whose_pinned_fields_have_older_names_is_read(
    store: Store,
) -> None:
    harness = ServiceHarness(store)
    click, claim = await harness.refund()
    blobs = store.keys_of_tenant("default").blobs(click.approval)
    record = json.loads(text(await store.conn.command("HGET", blobs, "frozen")))
    record["nth_request"] = record.pop("recent_requests")
    record["items"][0]["spelled"] = {"amount": "+7"}
    await store.conn.command("HSET", blobs, "frozen", json.dumps(record), "format", "2")

    approval = await harness.approval(claim.item_id)

    assert approval.recent_requests == record["nth_request"]
    assert approval.items[0].original_args == {"amount": "+7"}


def test_an_event_is_read_by_the_name_that_an_older_version_wrote() -> None:
    names = ("record.unreadable", "approval.unsettled", "triage.silent")

    read = [Event.model_validate({"name": one, "tenant": "t"}).name for one in names]

    assert read == [
        EventName.RECORD_QUARANTINED,
        EventName.APPROVAL_STILL_IN_DOUBT,
        EventName.TRIAGE_FAILED,
    ]
