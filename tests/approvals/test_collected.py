"""Several approvals are shown as one card, which is bound to exactly these."""

from __future__ import annotations

import itertools

import pytest

from keyturn.gateway.approvals.deciding import not_as_seen
from keyturn.gateway.approvals.decisions import Changed
from keyturn.gateway.approvals.record import (
    Approval,
    collected,
    is_collected,
    item_id,
)
from keyturn.gateway.protocol.records import ItemState
from tests.approvals.builders import (
    HOUR_MS,
    NOW_MS,
    an_approval,
    an_item,
    click_on,
)

CARD = "ap_default_" + "cc" * 16


def member(number: int, **changes: object) -> Approval:
    """Return an approval of a separate thread, with one refund."""
    approval_id = f"ap_default_{number:032x}"
    item = an_item(args={"order_id": f"{number}", "amount": number})
    return an_approval(item.with_(id=item_id(approval_id, 0))).with_(
        id=approval_id, thread=f"t{number}", rev=number, **changes
    )


THREE = [member(1), member(2), member(3)]


def test_each_call_keeps_its_id_and_hash_and_has_a_place() -> None:
    card = collected(CARD, THREE)

    assert [item.index for item in card.items] == [0, 1, 2]
    assert [item.id for item in card.items] == [one.items[0].id for one in THREE]
    assert [item.action_hash for item in card.items] == [
        one.items[0].action_hash for one in THREE
    ]
    assert is_collected(card)
    assert not any(is_collected(one) for one in THREE)


def test_its_digest_is_that_of_these_calls_in_this_order() -> None:
    changed = member(3).with_(items=(an_item().with_(id=THREE[2].items[0].id),))
    others = [
        collected(CARD, [THREE[0], THREE[1]]),
        collected(CARD, [THREE[1], THREE[0], THREE[2]]),
        collected(CARD, [*THREE, member(4)]),
        collected(CARD, [*THREE, THREE[0]]),
        collected(CARD, [*THREE[:2], changed]),
        collected("ap_default_" + "dd" * 16, THREE),
    ]

    digests = {collected(CARD, THREE).digest, *(one.digest for one in others)}

    assert len(digests) == 1 + len(others)


def test_a_later_drawing_is_never_taken_for_an_older_one() -> None:
    before = collected(CARD, THREE)
    moved = collected(CARD, [THREE[0].with_(rev=2), *THREE[1:]])
    left = collected(CARD, THREE[:2], left=1)
    gone = collected(CARD, THREE[:1], left=2)

    revs = [one.rev for one in (before, moved, left, gone)]
    assert all(one < other for one, other in itertools.pairwise(revs))
    assert before.version <= left.version <= gone.version


def test_it_ends_when_the_first_that_waits_does() -> None:
    early, late = NOW_MS + HOUR_MS // 2, NOW_MS + 2 * HOUR_MS
    done = member(2).items[0].with_(state=ItemState.REJECTED)
    members = [
        member(1, expires_at_ms=late),
        member(2, expires_at_ms=early, items=(done,)),
        member(3),
    ]

    card = collected(CARD, members)

    assert card.expires_at_ms == NOW_MS + HOUR_MS
    assert [item.expires_at_ms for item in card.items] == [
        late,
        early,
        NOW_MS + HOUR_MS,
    ]
    assert collected(CARD, members[1:2]).expires_at_ms == early


@pytest.mark.parametrize("index", [1, -1])
def test_a_click_on_a_call_that_is_not_there_is_one_on_another_version(
    index: int,
) -> None:
    click = click_on(member(1)).with_(index=index)

    assert not_as_seen(member(1), click, NOW_MS) == Changed(seen_version=1, version=1)
