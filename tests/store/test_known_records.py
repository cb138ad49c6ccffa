"""A change counts only over the record that it was computed from."""

from __future__ import annotations

import itertools

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
)
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.protocol.wire import ClaimRequest, Refused
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.store import Store
from tests.service.harness import ServiceHarness, claim_of

KEYS = Keys("default")
REFUND = "process_refund"
_NUMBERS = itertools.count(100)


@pytest.mark.parametrize(("field", "value"), [("0:s", "lapsed")])
async def test_a_call_is_not_started_over_another_change_of_the_same_number(
    harness: ServiceHarness, store: Store, field: str, value: str
) -> None:
    """A master that took over may have one, in place of the change that it lacks."""
    claim, item_id = await authorized(harness)
    head = KEYS.head(item_id.partition(".")[0])
    was = await store.conn.command("HGET", head, field)
    assert isinstance(was, bytes)
    await store.conn.command("HSET", head, field, value)

    reply = await harness.agents.claim(claim)

    assert isinstance(reply, Refused)
    await store.conn.command("HSET", head, field, was)
    assert (await harness.item(item_id)).owner == ""


async def test_a_record_that_was_damaged_since_is_not_taken_for_what_it_was(
    harness: ServiceHarness, store: Store
) -> None:
    _, item_id = await authorized(harness)
    approval_id = item_id.partition(".")[0]
    # Without the seal, which would detect it as well: `tests.resealing`.
    await store.conn.keep(["SET", KEYS.document(approval_id), "{}"])

    with pytest.raises(CorruptRecord):
        await store.approvals.load(approval_id)


async def authorized(harness: ServiceHarness) -> tuple[ClaimRequest, str]:
    """Return the claim of an approved call, and its id."""
    number = next(_NUMBERS)
    ref, (verdict,) = await harness.submit(
        (REFUND, {"amount": number}), thread=f"k{number}"
    )
    await harness.decide(verdict, Approve())
    return claim_of(ref, verdict), verdict.item_id
