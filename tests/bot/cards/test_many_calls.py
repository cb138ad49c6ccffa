"""Above a table are the facts that reviewers need: totals, outliers, failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.bot.cards.approval import card, many_calls
from keyturn.bot.cards.table import noticed
from keyturn.gateway.approvals.precedents import Past, Precedent
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import ItemState, Result, Tier
from keyturn.sandbox.blockkit import validate_message
from keyturn.sandbox.blockkit.payload_rules import text_length
from tests.bot.cards.test_table import a_refund_of, refunds, replaced
from tests.bot.readable import readable
from tests.bot.samples import an_approval, an_item, edited, frame, in_state
from tests.bot.snapshots import assert_all_same
from tests.levels import examples

EURO = ("args.amount|eur",)
RAN = Precedent(call="ap_1.0", state=ItemState.EXECUTED, agent="support-agent")
NO_FUNDS = Result(ok=False, summary="no funds")


def euros(count: int = 8, **changes: Any) -> Approval:
    return refunds(count, totals=EURO, **changes)


def head(approval: Approval) -> str:
    """Return a card up to the calls that are first in its table."""
    message = card(frame(approval))
    assert validate_message([*message.blocks], message.text) == []
    kinds = [block["type"] for block in message.blocks]
    if "table" not in kinds:
        return readable(message.blocks)
    above = readable(message.blocks[: kinds.index("table")])
    return "\n".join([above, *rows(approval)[:4]])


def rows(approval: Approval) -> list[str]:
    """Return the first cells of the table."""
    (table,) = (b for b in card(frame(approval)).blocks if b["type"] == "table")
    cells: Any = table["rows"]
    return [str(row[0]["text"]) for row in cells[1:]]


def failed(item: Item, *, asks: bool = False) -> Item:
    state = ItemState.IN_DOUBT if asks else ItemState.FAILED
    return in_state(item, state, result=NO_FUNDS)


def odd(index: int, amount: Any) -> Item:
    return an_item({"order_id": "1", "amount": amount}, index=index, totals=EURO)


def ended(*others: Item) -> Approval:
    """Return eight calls that ran, except some."""
    return replaced(
        an_approval(*(in_state(one, ItemState.EXECUTED) for one in euros().items)),
        *others,
    )


LONG = "estimated_net_amount_in_the_currency_of_the_customer_today"
CARDS = {
    "a total": euros(),
    "an edited call counts as it would run": replaced(
        euros(),
        edited(a_refund_of(1, totals=EURO), {"order_id": "78201", "amount": 0.25}),
    ),
    "a bare number, and a total of nothing": refunds(
        8, totals=("args.amount", "args.fee|eur")
    ),
    "no totals in the policy": refunds(8),
    "a hidden number is not in the total": replaced(
        euros(), a_refund_of(1, totals=EURO, redact=("args.amount",))
    ),
    "all are hidden": euros(redact=("args.amount",)),
    "calls without a number": replaced(euros(), odd(3, "about 5"), odd(4, None)),
    "a total for each state": replaced(
        euros(), in_state(a_refund_of(0, totals=EURO), ItemState.REJECTED)
    ),
    "a total that is too long for the header": an_approval(
        *(an_item({LONG: 5}, index=n, totals=(f"args.{LONG}",)) for n in range(7))
    ),
    "a value far from the others": replaced(euros(20), odd(16, 9000)),
    "a failed call runs again from the card": ended(
        failed(a_refund_of(6, totals=EURO), asks=True)
    ),
    "a failure that nobody is asked about": replaced(
        euros(), failed(a_refund_of(6, totals=EURO))
    ),
    "calls that ended": ended(failed(a_refund_of(6, totals=EURO))),
    "many failures": an_approval(*(failed(one, asks=True) for one in euros(20).items)),
    "a doubt is before failures and marks": ended(
        in_state(a_refund_of(2, original_args={"amount": "1"}), ItemState.EXECUTED),
        failed(a_refund_of(4)),
        in_state(a_refund_of(6), ItemState.IN_DOUBT),
    ),
}


def test_above_a_table_are_the_facts_that_reviewers_need() -> None:
    texts = {name: head(approval) for name, approval in CARDS.items()}

    assert_all_same(Path(__file__).parent / "snapshots", "many_calls", texts)


@pytest.mark.parametrize(
    "changes",
    [
        {"tier": Tier.ESCALATE},
        {"reasons": ("listed", "Raised to approve: over 50.")},
        {"original_args": {"amount": "11.50"}},
        {"past": Past(precedents=(RAN,))},
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
def test_every_call_has_its_row(calls: list[tuple[ItemState, int | str]]) -> None:
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
