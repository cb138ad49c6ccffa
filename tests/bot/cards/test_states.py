"""A card shows the state of its calls once: an icon at the act, words below it."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.states import SIGNS
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.bot.readable import readable
from tests.bot.samples import (
    LATER,
    NOW,
    TWO,
    a_refund,
    an_approval,
    an_item,
    frame,
    in_state,
)


def _drawn(approval: Approval, *, now_ms: int = NOW) -> str:
    return readable(card(frame(approval, now_ms=now_ms)).blocks)


@pytest.mark.parametrize("state", ItemState)
def test_the_sign_of_a_state_stands_once_beside_the_act(state: ItemState) -> None:
    item = a_refund() if state is ItemState.PENDING else in_state(a_refund(), state)

    head, *rest = _drawn(an_approval(item)).splitlines()

    assert head == f"# {SIGNS[state]} Refund 899.00 for order 78291"
    assert SIGNS[state] not in "\n".join(rest)


@pytest.mark.parametrize(
    ("item", "now_ms", "sign", "said"),
    [
        (a_refund(), NOW, "⏳", "Approval needed"),
        (a_refund(requirement=TWO), NOW, "⏳", "Needs 2 approvals"),
        (a_refund(tier=Tier.DENY), NOW, "⛔", "No longer allowed by the policy."),
        (a_refund(), LATER, "⌛", "The time to decide ended"),
    ],
)
def test_a_card_that_waits_says_so_once_below_its_header(
    item: Item, now_ms: int, sign: str, said: str
) -> None:
    head, state, *rest = _drawn(an_approval(item), now_ms=now_ms).splitlines()

    assert head.startswith(f"# {sign} ")
    assert state.startswith(f"m:*{said}*")
    assert said not in "\n".join(rest)


def test_calls_that_wait_for_one_person_each_repeat_nothing_of_the_head() -> None:
    text = _drawn(an_approval(a_refund(), an_item({}, index=1)))

    assert text.startswith("# ⏳ 2 × process_refund\n~ Approval needed")
    assert text.count("Approval needed") == 1


def test_a_call_of_several_says_where_it_stands_when_it_differs() -> None:
    done = in_state(an_item({}, index=1), ItemState.EXECUTED)
    two = an_item({}, index=2, requirement=TWO)

    text = _drawn(an_approval(a_refund(), done, two))

    assert "~ Approval needed: 2 of 3 calls" in text
    assert "✅ *Approved*" in text
    assert "⏳ *Needs 2 approvals*, including 1 from `senior`." in text
