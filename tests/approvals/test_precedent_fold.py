"""People's findings about a call in doubt decide whether it is a precedent."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.policy.replay import PrecedentFold
from keyturn.gateway.protocol.records import Finding, ItemState


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (Finding.EXECUTED, ItemState.EXECUTED),
        (Finding.RERUN, ItemState.AUTHORIZED),
        (Finding.SKIP, None),
    ],
)
def test_a_reconciled_call_is_what_people_found(
    finding: Finding, state: ItemState | None
) -> None:
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
