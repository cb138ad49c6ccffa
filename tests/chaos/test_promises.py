"""Every promise that a chaotic run is held to can be seen to break."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import ItemState
from tests.approvals.builders import an_approval, an_item
from tests.chaos.promises import Account, broken

THREAD = "slack:T0:C0APPROVALS:1.5"
RAN = an_item(args={"order": "o1.0"}).with_(tool="refund", state=ItemState.EXECUTED)


def approval(state: ItemState = ItemState.EXECUTED) -> Approval:
    """Return the record of one refund."""
    return an_approval(RAN.with_(state=state))


def event(name: EventName, item: str = "") -> Event:
    """Return an event of the one thread."""
    return Event(name=name, tenant="default", thread=THREAD, item=item)


KEPT = Account(
    approvals=[approval()],
    events=[
        event(EventName.RUN_STARTED),
        event(EventName.ITEM_AUTHORIZED, RAN.id),
        event(EventName.RUN_FINISHED),
    ],
    effects=[("refund", "o1.0", "k"), ("email", "o1.1", "m"), ("email", "o1.1", "m")],
    heard=frozenset({"1.5"}),
    decided=[(approval().id, RAN.index), (approval().id, None)],
    told={"1.5": ["refund o1.0"]},
)
REJECTED = [*KEPT.events, event(EventName.ITEM_REJECTED, RAN.id)]


def test_a_run_that_kept_every_promise_is_found_to_have() -> None:
    assert broken(KEPT) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"effects": [*KEPT.effects, ("refund", "o1.0", "k")]}, "doubled: refund"),
        ({"effects": [*KEPT.effects, ("email", "o1.1", "n")]}, "doubled: email"),
        ({"effects": [], "told": {}}, "was executed and had no effect"),
        ({"approvals": [approval(ItemState.PENDING)]}, "unauthorized"),
        ({"approvals": [approval(ItemState.FAILED)]}, "item.authorized and is failed"),
        ({"events": REJECTED}, "item.rejected and is executed"),
        ({"events": KEPT.events[:1]}, "was shown and not kept"),
        ({"forks": [("t", "c", 2)]}, "forked"),
        ({"events": [*KEPT.events, KEPT.events[-1]]}, "told 2 times"),
        ({"heard": frozenset({"1.5", "2.5"})}, "unheard: the message 2.5"),
        ({"told": {"1.5": ["count o1.2"]}}, "untrue"),
    ],
)
def test_a_broken_promise_is_named(changes: dict[str, object], said: str) -> None:
    found = broken(replace(KEPT, **changes))  # type: ignore[arg-type]  # each case names fields of it

    assert any(said in line for line in found), found


def test_a_message_that_the_person_was_told_to_repeat_is_not_lost() -> None:
    assert broken(replace(KEPT, heard=frozenset({"1.5", "2.5"}), excused=1)) == []


def test_an_order_that_was_asked_for_again_by_another_turn_ran_once() -> None:
    """The step of the first turn was lost before a decision."""
    asked_first = RAN.with_(state=ItemState.LAPSED, id=f"ap_default_{'c' * 32}.0")
    first = an_approval(asked_first)

    assert broken(replace(KEPT, approvals=[first, approval()])) == []
