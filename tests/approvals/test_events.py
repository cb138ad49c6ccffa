"""An event contains the facts by which its readers sort it."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.events import COLLECTION, Event, EventName
from keyturn.gateway.policy.replay import PrecedentFold
from keyturn.gateway.protocol.records import Finding, ItemState, Tier


@pytest.mark.parametrize(
    ("approval", "tier", "is_auto_approved"),
    [
        ("ap_1", Tier.NOTIFY, True),
        ("ap_1", Tier.APPROVE, False),
        ("ap_1", "", False),
        # A call without a card: reviewers were not notified.
        ("", Tier.NOTIFY, False),
    ],
)
def test_only_what_has_a_card_that_asks_nobody_is_about_a_notification(
    approval: str, tier: str, *, is_auto_approved: bool
) -> None:
    event = Event(
        name=EventName.ITEM_AUTHORIZED,
        tenant="t",
        agent="a",
        thread="t1",
        approval=approval,
        tier=tier,
    )

    assert event.is_auto_approved is is_auto_approved


def test_what_is_about_calls_of_several_approvals_is_told_on_their_card() -> None:
    of_one = Event(name=EventName.ITEM_AUTHORIZED, tenant="t", approval="ap_1")
    of_all = Event(name=EventName.CALLS_DECIDED, tenant="t", data={COLLECTION: "ap_2"})

    assert (of_one.card, of_all.card) == ("ap_1", "ap_2")
    assert Event(name=EventName.RUN_STARTED, tenant="t").card == ""


# People's findings about a call in doubt decide whether it is a precedent.


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (Finding.EXECUTED, ItemState.EXECUTED),
        (Finding.RERUN, ItemState.AUTHORIZED),
        (Finding.SKIP, None),
    ],
)
def test_a_finding_ends_its_call(finding: Finding, state: ItemState | None) -> None:
    fold = PrecedentFold()
    fold.opened("call", "effect")
    fold.record(EventName.ITEM_IN_DOUBT, "call", at_ms=1)

    fold.record(EventName.ITEM_RECONCILED, "call", at_ms=2, reason=finding)

    found = {call: one.state for call, one in fold.precedents("effect").items()}
    assert found == ({} if state is None else {"call": state})


def test_an_edit_takes_a_call_to_its_new_effect() -> None:
    fold = PrecedentFold()
    fold.opened("call", "before")
    fold.record(EventName.ITEM_AUTHORIZED, "call", at_ms=1)

    fold.opened("call", "after")

    assert fold.precedents("before") == {}
    assert list(fold.precedents("after")) == ["call"]
