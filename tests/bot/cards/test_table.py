"""Many calls of one tool are in a table: decided as a whole, or one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.bot.cards.approval import card, many_calls
from keyturn.bot.cards.call_rows import decided_alone
from keyturn.bot.cards.frame import TABLE_FROM, is_table
from keyturn.bot.cards.table import TABLE_CHARS, noticed, table_of
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.evidence import HIDDEN
from keyturn.gateway.approvals.precedents import Past, Precedent
from keyturn.gateway.approvals.record import Approval, Item, TriageResult
from keyturn.gateway.approvals.requirement import Revocation
from keyturn.gateway.protocol.digest import BusinessState, with_state
from keyturn.gateway.protocol.records import ItemState, Result, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.submit.proposals import MAX_BATCH
from keyturn.sandbox.blockkit import validate_message
from keyturn.sandbox.blockkit.payload_rules import text_length
from tests.bot.readable import readable
from tests.bot.samples import TWO, an_approval, an_item, edited, frame, in_state
from tests.bot.snapshots import CARD_TEXTS, assert_all_same
from tests.bot.strategies import hostile
from tests.levels import examples


def refunds(count: int, **changes: Any) -> Approval:
    """Return this many refunds of different orders."""
    return an_approval(*(a_refund_of(index, **changes) for index in range(count)))


def a_refund_of(index: int, **changes: Any) -> Item:
    args: JsonObject = {"order_id": f"{78200 + index}", "amount": 10.5 + index}
    schema: JsonObject = {
        "type": "object",
        "properties": {"order_id": {"type": "string"}, "amount": {"type": "number"}},
    }
    item = an_item(args, index=index, args_schema=schema)
    return item.with_(**changes)


def replaced(approval: Approval, *items: Item) -> Approval:
    return approval.replacing(*items)


def buttons(approval: Approval) -> list[str]:
    message = card(frame(approval))
    problems = validate_message([*message.blocks], message.text, update=True)
    assert [*map(str, problems)] == []
    last = [block for block in message.blocks if block["type"] == "actions"]
    found: list[str] = []
    for block in last:
        elements = block["elements"]
        assert isinstance(elements, list)
        for one in elements:
            assert isinstance(one, dict)
            found.append(str(one["action_id"]))
    return found


def test_56_refunds_are_one_table_with_every_way_to_decide() -> None:
    approval = refunds(56)

    rows = table_of(approval).rows
    offered = buttons(approval)

    assert rows[0] == ("#", "order_id", "amount")
    assert rows[1] == ("1", "78200", "10.5")
    assert rows[56] == ("56", "78255", "65.5")
    assert len(rows) == 57
    assert not decided_alone(approval)
    assert offered == [
        Action.APPROVE_ALL,
        Action.CHOOSE,
        Action.REJECT_ALL,
        Action.VIEW_ALL,
        Action.MORE,
    ]


def ordering(index: int, order: object, **changes: Any) -> Item:
    """Return a refund of this order, whose schema declares a text."""
    args: Any = {"order_id": order, "amount": 5}
    return a_refund_of(index, **changes).with_(
        requested=an_item(args, index=index).action,
        action=an_item(args, index=index).action,
    )


def in_stock(index: int) -> Item:
    item = a_refund_of(index)
    state = BusinessState(value={"balance": 7})
    return item.with_(
        requested=with_state(item.requested, state),
        action=with_state(item.action, state),
    )


TABLES = {
    "states": replaced(
        refunds(8),
        edited(a_refund_of(2), {"order_id": "78202", "amount": 5}),
        in_state(a_refund_of(3), ItemState.EXECUTED),
        a_refund_of(4, requirement=TWO),
    ),
    "texts that look like numbers, edges, and what the policy hides": replaced(
        refunds(8),
        ordering(2, "78202", args_schema=None),
        ordering(3, 78203),
        ordering(4, " 7"),
        ordering(5, HIDDEN),
        ordering(6, "secret", redact=("args.order_id",)),
    ),
    "amounts in the policy's format": refunds(8, formats=("args.amount|eur",)),
    "different arguments": replaced(
        refunds(8),
        an_item({"note": "late"}, index=3),
        an_item({}, index=4),
        an_item({"note": ""}, index=5),
    ),
    "a business state": replaced(refunds(8), in_stock(1)),
    "names of our columns": an_approval(
        *(an_item({"State seen": "approved", "#": 7}, index=n) for n in range(8))
    ),
}


def printed(approval: Approval) -> str:
    """Return the rows of a table; a call that is not whole has a mark."""
    table = table_of(approval)
    marks = ["  ", *("  " if n in table.whole else "! " for n in range(99))]
    return "\n".join(
        f"{mark}{' | '.join(row)}".rstrip()
        for mark, row in zip(marks, table.rows, strict=False)
    )


def test_numbers_are_at_the_right_edge_and_every_cell_is_wrapped() -> None:
    columns = table_of(refunds(8)).columns

    assert [one.get("align") for one in columns] == [None, None, "right"]
    assert all(one["is_wrapped"] for one in columns)


def test_a_row_shows_what_would_run_and_where_it_stands() -> None:
    texts = {name: printed(approval) for name, approval in TABLES.items()}

    assert_all_same(CARD_TEXTS, "tables", texts)


@pytest.mark.parametrize(
    "changes",
    [
        {"tier": Tier.ESCALATE, "requirement": TWO},
        {"requires_reason": (Verb.APPROVE,)},
        {"allow": (Verb.REJECT,)},
        # More is to be said about these than a row has room for.
        {"original_args": {"amount": "11.50"}},
        {"revoked": Revocation(reason="Later.", at_ms=1)},
        {"triage": TriageResult(raised_to=Tier.APPROVE, rationale="odd")},
        {"action": an_item({"note": "x" * 400}, index=7).action},
    ],
)
def test_a_lone_decision_is_not_approved_together(changes: dict[str, Any]) -> None:
    approval = replaced(refunds(20), a_refund_of(7, **changes))

    assert decided_alone(approval) == {7}
    assert Action.APPROVE_ALL not in buttons(approval)
    assert "Decide these one at a time: call 8." in str(card(frame(approval)).blocks)


def test_a_few_calls_and_calls_of_several_tools_have_rows_of_their_own() -> None:
    other = an_item({}, index=0, tool="send_email")

    assert not is_table(refunds(TABLE_FROM - 1))
    assert is_table(refunds(TABLE_FROM))
    assert not is_table(replaced(refunds(TABLE_FROM), other))


@pytest.mark.parametrize(
    ("args", "is_whole"),
    [
        ({}, True),
        ({"order_id": ""}, True),
        ({"order_id": "x" * 150}, True),
        ({"order_id": "x" * 151}, False),
        ({"order_id": "two  gaps"}, True),
        ({"order_id": "three   gaps"}, False),
        ({"order_id": "a\nb"}, True),
        ({"order_id": "שלום עולם"}, True),
        ({"order_id": "全角テキスト" * 4}, True),
        ({"order_id": "\u202e" * 19}, False),
        ({"order_id": {"a": [1, 2]}}, False),
        ({"n" * 41: 1}, False),
    ],
)
def test_a_row_is_whole_or_opened_first(args: JsonObject, *, is_whole: bool) -> None:
    approval = replaced(refunds(20), an_item(args, index=3))

    assert (3 in table_of(approval).whole) is is_whole
    assert (decided_alone(approval) == {3}) is not is_whole
    assert (Action.APPROVE_ALL in buttons(approval)) is is_whole


def test_a_table_of_long_arguments_keeps_its_numbers_and_shows_that_it_is_cut() -> None:
    args: JsonObject = {f"field_{n}": "some words " * 5 for n in range(20)}
    approval = an_approval(*(an_item(args, index=n) for n in range(MAX_BATCH)))

    table = table_of(approval)

    assert not table.whole
    assert len(table.rows) == MAX_BATCH + 1
    assert sum(len(cell) for row in table.rows for cell in row) <= TABLE_CHARS
    assert buttons(approval) == [
        Action.REJECT_ALL,
        Action.VIEW_ALL,
        Action.MORE,
    ]


def test_whether_a_call_is_whole_does_not_depend_on_the_state_of_others() -> None:
    args: list[JsonObject] = [{"note": f"{n}".rjust(44, "x")} for n in range(73)]
    items = [an_item(one, index=n) for n, one in enumerate(args)]
    two = [item.with_(requirement=TWO, tier=Tier.ESCALATE) for item in items]
    done = [in_state(item, ItemState.AUTHORIZED) for item in items[:60]] + items[60:]

    found = [table_of(an_approval(*each)).whole for each in (items, two, done)]

    assert found[0] == found[1] == found[2]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.dictionaries(hostile, hostile | st.floats(-9, 9) | st.none(), max_size=4),
        min_size=TABLE_FROM,
        max_size=12,
    )
)
def test_nothing_hostile_leaves_the_cells(values: list[dict[str, Any]]) -> None:
    items = [an_item({**args}, index=n) for n, args in enumerate(values)]
    approval = an_approval(*items)
    message = card(frame(approval))

    assert validate_message([*message.blocks], message.text) == []
    tables = [block for block in message.blocks if block["type"] == "table"]
    assert len(tables) == 1
    whole = table_of(approval).whole
    # Two calls that are whole and differ never read the same.
    rows = table_of(approval).rows[1:]
    seen = {rows[index][1:]: items[index].args for index in sorted(whole)}
    for index in whole:
        assert seen[rows[index][1:]] == items[index].args


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

    assert_all_same(CARD_TEXTS, "many_calls", texts)


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
