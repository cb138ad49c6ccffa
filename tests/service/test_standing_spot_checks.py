"""A call under a standing approval is spot checked by a person who did not give it."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.events import STANDING, EventName
from keyturn.gateway.approvals.quality_checks import TOOK_PART, is_drawn
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, BEN, ServiceHarness, claim_of
from tests.service.standing import ALLOWING, allowed, refund

CHECKED = f"{ALLOWING}spot_checks: {{share: 99%, of: [support]}}\n"


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, load_policy(CHECKED, "policy.yml"))


async def ran(harness: ServiceHarness) -> Item:
    """Run a covered call with a drawn check."""
    for number in range(10):
        ref, (verdict,) = await harness.submit(
            refund(1, f"o{number}"), thread=f"t{number}"
        )
        item = await harness.item(verdict.item_id)
        assert item.cover
        if is_drawn(item, 99):
            claimed = await harness.granted(claim_of(ref, verdict))
            await harness.agents.finish(item.id, claimed.fence, Result(ok=True))
            return await harness.item(item.id)
    raise AssertionError("10 calls in a row were not drawn")


async def test_somebody_else_than_its_givers_is_asked(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    item = await ran(harness)
    assert item.is_to_be_checked

    approval_id, index = approval_of(item.id)
    checks = harness.reviews.spot_checks
    own = await checks.answer(approval_id, index, ANA, is_right=True)
    other = await checks.answer(approval_id, index, BEN, is_right=False)

    assert (own, other) == (TOOK_PART, "")
    entries = await harness.audited()
    [checked] = [one for one in entries if one.name is EventName.ITEM_CHECKED]
    assert checked.data[STANDING] == standing.id
