"""A card of a few calls shows their totals, as the table of many does."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.approval import card
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import ItemState
from keyturn.sandbox.blockkit import validate_message
from tests.bot.cards.test_table import a_refund_of, refunds, replaced
from tests.bot.readable import readable
from tests.bot.samples import an_approval, an_item, edited, frame, in_state

EURO = ("args.amount|eur",)
MANY = ("args.amount|eur", "args.b|usd", "args.c|gbp")


def _shown(approval: Approval) -> str:
    message = card(frame(approval))
    assert validate_message([*message.blocks], message.text) == []
    return readable(message.blocks)


def _call(tool: str, index: int, amount: object) -> Item:
    return an_item({"amount": amount}, tool=tool, index=index, totals=EURO)  # type: ignore[dict-item]  # some are odd on purpose


def test_two_calls_of_one_tool_have_their_total_in_the_header() -> None:
    text = _shown(refunds(2, totals=EURO))

    assert text.startswith("# ⏳ 2 × process_refund · €22.00\n")


def test_the_total_of_a_few_calls_follows_edits_and_states() -> None:
    changed = edited(a_refund_of(0, totals=EURO), {"order_id": "1", "amount": 1})
    done = in_state(a_refund_of(1, totals=EURO), ItemState.EXECUTED)

    text = _shown(replaced(refunds(3, totals=EURO), changed, done))

    assert "· €25.00" in text
    assert "amount: €13.50 waiting · €11.50 done" in text


def test_of_several_tools_each_with_two_calls_has_a_total_of_its_own() -> None:
    calls = [_call("pay", 0, 1), _call("refund", 1, 2), _call("pay", 2, 3)]

    text = _shown(an_approval(*calls))

    assert text.startswith("# ⏳ 3 calls: pay, refund\n")
    assert "pay: €4.00 in total" in text
    assert "refund: €" not in text


def test_what_is_not_in_the_total_of_a_tool_is_said() -> None:
    calls = [_call("pay", 0, 1), _call("pay", 1, "much"), _call("look", 2, 3)]

    assert "pay: €1.00 in 1 of them" in _shown(an_approval(*calls))


@pytest.mark.parametrize("state", [ItemState.EXECUTED, ItemState.REJECTED])
def test_a_finished_card_keeps_the_total(state: ItemState) -> None:
    ended = [in_state(a_refund_of(n, totals=EURO), state) for n in range(3)]

    assert "3 × process_refund · €34.50" in _shown(an_approval(*ended))


def test_the_question_of_approve_all_repeats_the_total() -> None:
    message = card(frame(refunds(2, totals=EURO)))

    assert "All 2 run as shown: amount €22.00 in total." in str(message.blocks)


def test_totals_that_do_not_fit_are_counted_and_the_calls_stay_whole() -> None:
    long = "9" * 48
    calls = [
        an_item({"amount": long, "b": long, "c": long}, tool=tool, index=n, totals=MANY)
        for n, tool in enumerate(("pay" * 15, "give" * 15) * 2)
    ]

    text = _shown(an_approval(*calls))

    assert "More about totals is not shown: " in text
    assert text.count("in total") == 2
