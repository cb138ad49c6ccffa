"""A claim lasts as long as its lease, and its result is recorded once."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.executing import finish, shorten_claim
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import Finding, ItemState, Result
from tests.approvals.builders import NOW_MS, an_approval, an_item

LEASE_MS = 60_000
RAN, FAILED = Result(ok=True), Result(ok=False)


def executing(**more: object) -> tuple[Approval, Item]:
    item = an_item().with_(state=ItemState.EXECUTING, fence=2, owner="w1", **more)
    return an_approval(item), item


def test_a_claim_that_a_clock_made_too_long_is_cut_to_its_lease() -> None:
    long = executing(claimed_until_ms=NOW_MS + LEASE_MS + 1)
    right = executing(claimed_until_ms=NOW_MS + LEASE_MS)

    cut = shorten_claim(*long, lease_ms=LEASE_MS, now_ms=NOW_MS)

    assert cut is not None
    assert cut.approval.items[0].claimed_until_ms == NOW_MS + LEASE_MS
    assert cut.approval.rev == long[0].rev + 1
    assert shorten_claim(*right, lease_ms=LEASE_MS, now_ms=NOW_MS) is None


@pytest.mark.parametrize("result", [RAN, FAILED, None])
def test_the_same_report_again_was_recorded_before(result: Result | None) -> None:
    first = finish(*executing(), 2, result, now_ms=NOW_MS)
    assert isinstance(first, Change)
    after = first.approval

    assert finish(after, after.items[0], 2, result, now_ms=NOW_MS) is True
    assert finish(after, after.items[0], 1, result, now_ms=NOW_MS) is False


@pytest.mark.parametrize(
    ("found", "late", "is_contradicted"),
    [
        (None, RAN, False),
        (Finding.EXECUTED, None, False),
        (Finding.EXECUTED, RAN, False),
        (Finding.EXECUTED, FAILED, True),
        (Finding.SKIP, RAN, True),
        (Finding.SKIP, FAILED, False),
        (Finding.RERUN, RAN, True),
        (Finding.RERUN, FAILED, True),
    ],
)
def test_a_late_report_contradicts_what_people_found_or_does_not(
    found: Finding | None, late: Result | None, *, is_contradicted: bool
) -> None:
    assert (
        an_item().with_(finding=found, late_result=late).is_contradicted
        is is_contradicted
    )
