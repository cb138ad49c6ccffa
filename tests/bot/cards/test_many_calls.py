"""Above a table are the facts that reviewers need: totals, outliers, failures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.bot.cards.approval import card, many_calls
from keyturn.bot.cards.table import noticed
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.precedents import Past, Precedent
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import ItemState, Result, Tier
from keyturn.sandbox.blockkit import validate_message
from keyturn.sandbox.blockkit.payload_rules import text_length
from tests.bot.cards.test_table import a_refund_of, buttons, refunds, replaced
from tests.bot.readable import readable
from tests.bot.samples import (
    NOW,
    an_approval,
    an_item,
    edited,
    frame,
    in_state,
)
from tests.levels import examples

EURO = ("args.amount|eur",)
NO_FUNDS = Result(ok=False, summary="no funds")


def euros(count: int = 56, **changes: Any) -> Approval:
    return refunds(count, totals=EURO, **changes)


def shown(approval: Approval) -> str:
    message = card(frame(approval))
    assert validate_message([*message.blocks], message.text) == []
    return readable(message.blocks)


def rows(approval: Approval) -> list[str]:
    """Return the first cells of the table."""
    (table,) = (b for b in card(frame(approval)).blocks if b["type"] == "table")
    cells: Any = table["rows"]
    return [str(row[0]["text"]) for row in cells[1:]]


def failed(item: Item, *, asks: bool = False) -> Item:
    state = ItemState.IN_DOUBT if asks else ItemState.FAILED
    return in_state(item, state, result=NO_FUNDS)


def test_the_header_has_the_number_of_calls_and_their_total() -> None:
    assert "56 × process_refund · €2,128.00" in shown(euros())


def test_a_total_is_of_what_would_run_after_edits() -> None:
    changed = edited(a_refund_of(1), {"order_id": "78201", "amount": 0.25})

    text = shown(replaced(euros(), changed.with_(totals=EURO)))

    assert "· €2,116.75" in text


def test_a_bare_number_is_named() -> None:
    assert "· amount 2,128" in shown(refunds(56, totals=("args.amount",)))


def test_a_total_holds_nothing_that_the_card_hides() -> None:
    hidden = a_refund_of(1).with_(totals=EURO, redact=("args.amount",))

    text = shown(replaced(euros(), hidden))

    assert "€2,116.50 in 55 of them" in text
    assert "Not in the total of amount: call 2 (hidden by policy)" in text
    assert "11.5" not in text.replace("2,116.50", "")


def test_all_hidden_is_no_total() -> None:
    text = shown(euros(redact=("args.amount",)))

    assert "in total" not in text
    assert "Not in the total of amount: calls 1-56 (hidden by policy)" in text


def test_calls_without_a_number_are_named() -> None:
    odd = [
        an_item({"order_id": "1", "amount": one}, index=n).with_(totals=EURO)
        for n, one in ((3, "about 5"), (4, None))
    ]

    text = shown(replaced(euros(), *odd))

    assert "in 54 of them" in text
    assert "Not in the total of amount: calls 4-5 (no number)" in text


def test_the_total_is_divided_by_state_once_calls_differ_in_it() -> None:
    gone = in_state(a_refund_of(0).with_(totals=EURO), ItemState.REJECTED)

    text = shown(replaced(euros(), gone))

    assert "amount: €2,117.50 waiting · €10.50 rejected" in text


@pytest.mark.parametrize("state", [ItemState.PENDING, ItemState.EXECUTED])
def test_a_total_that_is_too_long_for_the_header_stands_below_it(
    state: ItemState,
) -> None:
    name = "estimated_net_amount_in_the_currency_of_the_customer_today"
    items = [
        in_state(an_item({name: 5}, index=n).with_(totals=(f"args.{name}",)), state)
        for n in range(7)
    ]

    assert f"{name}: 35 " in shown(an_approval(*items))


def test_a_total_of_nothing_is_not_shown() -> None:
    approval = refunds(7, totals=(*EURO, "args.fee|eur"))

    text = shown(approval)

    assert "fee: " not in text.replace("Not in the total of fee: calls 1-7", "")


def test_without_a_word_of_the_policy_nothing_is_added_up() -> None:
    assert "total" not in shown(refunds(56))


def test_a_value_far_from_the_others_is_on_top_with_its_own_number() -> None:
    far = an_item({"order_id": "1", "amount": 9000}, index=16).with_(totals=EURO)
    approval = replaced(euros(), far)

    assert rows(approval)[:3] == ["⚠️ 17", "1", "2"]
    assert "Far from the others:" in shown(approval)
    assert "amount of call 17; the median is €39.00" in shown(approval)


@pytest.mark.parametrize(
    "changes",
    [
        {"tier": Tier.ESCALATE},
        {"reasons": ("listed", "Raised to approve: over 50.")},
        {"original_args": {"amount": "11.50"}},
        {
            "past": Past(
                precedents=(
                    Precedent(
                        call="ap_1.0",
                        state=ItemState.EXECUTED,
                        agent="support-agent",
                        since_ms=NOW,
                        at_ms=NOW,
                    ),
                )
            )
        },
    ],
)
def test_what_differs_from_the_others_is_on_top(changes: dict[str, Any]) -> None:
    usual = refunds(20, reasons=("listed",))
    approval = replaced(usual, usual.items[7].with_(**changes))

    assert noticed(approval) == {7}
    assert [row.partition(" · ")[0] for row in rows(approval)[:2]] == ["⚠️ 8", "1"]


@pytest.mark.parametrize("text", ["a\u202eb", "p\u0430ypal"])
def test_odd_characters_are_on_top(text: str) -> None:
    item = an_item({"order_id": text, "amount": 1}, index=7)

    assert rows(replaced(refunds(20), item))[0] == "⚠️ 8"


def test_what_most_calls_have_is_not_odd() -> None:
    strict = refunds(20, reasons=("listed", "Needs two."), tier=Tier.ESCALATE)
    laxer = replaced(strict, a_refund_of(3, reasons=("listed",)))

    assert not noticed(strict)
    assert not noticed(laxer)
    assert noticed(refunds(20, original_args={"amount": "1"})) == {*range(20)}


def test_marks_change_nothing_that_is_signed() -> None:
    plain = refunds(20)
    far = plain.items[7].with_(past=Past(), original_args={"amount": "1"})

    assert replaced(plain, far).digest == plain.digest


def test_a_failed_call_is_named_first_and_runs_again_from_the_card() -> None:
    done = [in_state(one, ItemState.EXECUTED) for one in euros().items]
    done[16] = failed(done[16], asks=True)
    approval = an_approval(*done)
    text = shown(approval)

    assert text.index("*1 of 56 failed:* #17") < text.index("The agent's reason")
    assert "no funds" in text
    assert rows(approval)[0] == "❌ 17 · failed"
    assert Action.RECONCILE_RERUN in buttons(approval)


def test_a_failure_that_nobody_is_asked_about_has_its_error_and_no_button() -> None:
    waiting = replaced(euros(), failed(a_refund_of(16)))
    text = shown(waiting)

    assert "*1 of 56 failed:* #17" in text
    assert "17: no funds" in text
    assert Action.RECONCILE_RERUN not in buttons(waiting)


def test_the_card_of_ended_calls_names_failures_with_their_errors_and_totals() -> None:
    done = [in_state(one, ItemState.EXECUTED) for one in euros().items]
    done[16] = failed(done[16])
    text = shown(an_approval(*done))

    assert "56 × process_refund · €2,128.00" in text
    assert "❌ 17. " in text
    assert "(failed: no funds)" in text
    assert "amount: €2,101.50 done · €26.50 failed" in text


def test_the_buttons_of_all_calls_stand_above_their_rows() -> None:
    for calls in (euros(), euros(7)):
        kinds = [block["type"] for block in card(frame(calls)).blocks]

        assert kinds[-2:] == ["actions", "table"]


def test_many_doubts_have_three_entries_and_say_how_many_more() -> None:
    doubts = [failed(one, asks=True) for one in euros(20).items]
    text = shown(an_approval(*doubts))

    assert "*20 of 20 failed:* #1, #2, #3, #4, #5, #6, #7, #8 and 12 more" in text
    assert buttons(an_approval(*doubts)).count(Action.RECONCILE_RERUN) == 3
    assert "17 more need an answer" in text


def test_doubts_stand_before_failures_and_both_before_marks() -> None:
    items = [in_state(one, ItemState.EXECUTED) for one in refunds(20).items]
    items[5] = items[5].with_(original_args={"amount": "1"})
    items[9] = failed(items[9])
    items[12] = in_state(items[12], ItemState.IN_DOUBT)

    assert rows(an_approval(*items))[:4] == [
        "❓ 13 · in doubt",
        "❌ 10 · failed",
        "⚠️ 6 · done",
        "1 · done",
    ]


def test_what_does_not_fit_above_a_full_table_is_said() -> None:
    doubts = [failed(one, asks=True) for one in euros(20).items]
    framed = frame(an_approval(*doubts))
    whole, table = many_calls(framed, room=9_000)
    says = next(one for one in whole if "The agent's reason" in readable([one]))
    room = text_length([table, says]) + 250

    cut, cut_table = many_calls(framed, room=room)

    assert cut_table == table, "the table is never cut"
    assert text_length([*cut, table]) <= room
    assert "*20 of 20 failed:*" in readable(cut)
    assert "Not all notes fit here" in readable(cut)
    assert "Not all notes" not in readable(whole)


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*ItemState]), st.integers(-99, 99) | st.text(max_size=3)
        ),
        min_size=7,
        max_size=30,
    )
)
def test_every_call_has_one_row_under_its_number(
    calls: list[tuple[ItemState, int | str]],
) -> None:
    items = [
        in_state(an_item({"amount": one}, index=n, totals=EURO), state, result=NO_FUNDS)
        for n, (state, one) in enumerate([(ItemState.PENDING, 1), *calls])
    ]
    approval = an_approval(*items)
    message = card(frame(approval))

    # The number is the word before the state, behind a mark.
    firsts = (row.partition(" · ")[0].split()[-1] for row in rows(approval))
    numbers = sorted(map(int, firsts))

    assert validate_message([*message.blocks], message.text) == []
    assert numbers == [*range(1, len(items) + 1)]
