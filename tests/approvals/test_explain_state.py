"""A click on an older version is answered with the state of the call."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.deciding import decide
from keyturn.gateway.approvals.decisions import (
    Approve,
    Changed,
    Expired,
    Stale,
    explain_state,
)
from keyturn.gateway.protocol.records import ItemState
from tests.approvals.builders import (
    ANA,
    NOW_MS,
    an_approval,
    an_item,
    click_on,
    reviewer,
)


@pytest.mark.parametrize("state", ItemState)
@pytest.mark.parametrize("is_late", [False, True])
def test_an_old_click_is_told_what_a_decision_would_be(
    state: ItemState, *, is_late: bool
) -> None:
    approval = an_approval(an_item().with_(state=state, changed_at_ms=NOW_MS))
    approval = approval.with_(version=2)
    now_ms = approval.expires_at_ms if is_late else NOW_MS
    click = click_on(approval).with_(version=1)

    said = explain_state(approval, 0, seen_version=1, now_ms=now_ms)

    assert said == decide(approval, click, Approve(), reviewer(ANA), now_ms=now_ms)


def test_what_ended_a_call_is_told_before_its_new_version() -> None:
    waits, ran = an_item(0), an_item(1).with_(state=ItemState.EXECUTED)
    approval = an_approval(waits, ran).with_(version=2)
    late_ms = approval.expires_at_ms

    def told(index: int | None, now_ms: int = NOW_MS) -> object:
        return explain_state(approval, index, seen_version=1, now_ms=now_ms)

    assert told(0) == Changed(seen_version=1, version=2)
    assert told(0, late_ms) == Expired(expires_at_ms=late_ms)
    assert told(1, late_ms) == Stale.of(ran)


@pytest.mark.parametrize("index", [None, 1])
def test_a_batch_or_an_item_that_is_not_there_has_changed(index: int | None) -> None:
    approval = an_approval(an_item()).with_(version=2)

    said = explain_state(approval, index, seen_version=1, now_ms=NOW_MS)

    assert said == Changed(seen_version=1, version=2)
