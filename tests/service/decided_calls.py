"""Calls that people decided, and records that an attacker wrote."""

from __future__ import annotations

from collections.abc import Callable

from keyturn.gateway.approvals.changes import Change, following
from keyturn.gateway.approvals.decisions import (
    Approve,
    Decided,
    Decision,
    Reviewer,
    Voted,
)
from keyturn.gateway.approvals.record import Approval, Item, approval_of
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.protocol.receipts import Receipt, read_receipt
from keyturn.gateway.protocol.wire import ClaimRequest
from keyturn.gateway.store.records.atomic_write import Loaded, Write
from keyturn.gateway.trust.key_folder import Role
from tests.service.harness import (
    ANA,
    CHLOE,
    ServiceHarness,
    claim_of,
    still_members,
)

REQUEST = "sha256:" + "7" * 64


def gateway_keys(harness: ServiceHarness) -> tuple[PublicKey, ...]:
    """Return the public keys of the gateway."""
    assert harness.store.keyring
    return harness.store.keyring.verifying(Role.GATEWAY)


async def decided(
    harness: ServiceHarness,
    decision: Decision | None = None,
    by: Reviewer = ANA,
    tool: str = "process_refund",
) -> ClaimRequest:
    """Return the claim of a call that people decided."""
    ref, verdicts = await harness.submit((tool, {"amount": 120}))
    click = await harness.click(verdicts[0])
    outcome = await harness.reviews.decide(
        click.with_(request_digest=REQUEST), decision or Approve(), by
    )
    assert isinstance(outcome, Decided | Voted)
    return claim_of(ref, verdicts[0])


async def two_of_two(harness: ServiceHarness) -> ClaimRequest:
    """Return the claim of an escalated call that Ana and Chloe approved."""
    claim = await decided(harness, tool="wire_money")
    click = await harness.click_on(claim.item_id)
    item = await harness.item(claim.item_id)
    outcome = await harness.reviews.decide(
        click, Approve(), CHLOE, voters=lambda _: still_members(item)
    )
    assert isinstance(outcome, Decided)
    return claim


async def receipt_of(harness: ServiceHarness, claim: ClaimRequest) -> Receipt:
    found = await harness.granted(claim)
    return read_receipt(found.receipt, gateway_keys(harness))[0]


async def forge(
    harness: ServiceHarness,
    item_id: str,
    change: Callable[[Approval, Item], tuple[Approval, Item]],
) -> None:
    """Write a record like an attacker with all secrets of the store, but no key."""

    async def compute(loaded: Loaded) -> Write:
        index = approval_of(item_id)[1]
        approval, item = change(loaded.approval, loaded.approval.items[index])
        return Write(Change(following(approval, item)))

    await harness.store.approvals.change(approval_of(item_id)[0], compute)
