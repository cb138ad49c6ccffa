"""Calls that differ from the others as mistakes do are marked; honest ones are not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.bot.cards.table import mark_lines
from keyturn.gateway.approvals.precedents import Past, WindowTotal
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.policy.marks import (
    MarkKind,
    is_card,
    is_iban,
    is_misleading,
    look_alikes,
    marks_of,
    rows_of,
)
from keyturn.gateway.policy.windows import MICRO
from keyturn.gateway.protocol.records import ItemState
from tests.bot.samples import an_approval, an_item, edited
from tests.bot.strategies import hostile
from tests.levels import examples

IBANS = (
    "DE89370400440532013000",
    "GB29NWBK60161331926819",
    "FR1420041010050500013M02606",
    "NL91ABNA0417164300",
    "BE68539007547034",
    "AT611904300234573201",
)
CARDS = (
    "4111111111111111",
    "5555555555554444",
    "4012888888881881",
    "5105105105105100",
    "4242424242424242",
    "2223003122003222",
)
"""Public test numbers of the payment networks."""


def refunds(*rows: dict[str, Any], **changes: Any) -> Approval:
    totals = ("args.amount|eur",)
    items = [
        an_item(row, index=n, totals=totals, **changes) for n, row in enumerate(rows)
    ]
    return an_approval(*items)


def column(name: str, *values: Any) -> Approval:
    return refunds(*({name: one} for one in values))


def found(approval: Approval) -> dict[int, set[MarkKind]]:
    """Return the kinds of marks, by the number of the call."""
    kinds: dict[int, set[MarkKind]] = {}
    for one in marks_of(approval):
        kinds.setdefault(one.index, set()).add(one.kind)
    return kinds


def amounts(*numbers: Any) -> set[int]:
    marks = found(column("amount", *numbers))
    return {at for at, kinds in marks.items() if MarkKind.FAR in kinds}


def test_a_number_far_from_the_others_is_marked() -> None:
    assert amounts(*[50 + n for n in range(20)], 3000) == {20}
    assert amounts(*[50] * 20, "0.5") == {20}
    assert amounts(*[50] * 20, 95) == {20}
    assert amounts(*[50] * 20, -50) == {20}
    assert amounts(*[0] * 20, 1) == {20}
    assert amounts(*[-50] * 20, -200, -60) == {20}
    assert amounts(*[50] * 20, *[5000] * 3) == {20, 21, 22}


def test_numbers_that_are_spread_or_nearly_equal_or_few_are_not_far() -> None:
    assert amounts(*[10.5 + n for n in range(56)]) == set()
    assert amounts(*[50] * 20, 51, 85) == set()
    assert amounts(*[50] * 20, *[100] * 3) == set()
    assert amounts(1, 1, 1, 900) == set()
    assert amounts(*[2**n for n in range(40)]) == set()


def test_charges_and_refunds_on_one_card_are_not_far() -> None:
    # The median of both is no number of either.
    assert not amounts(10, 11, 12, -10, -11, -12)
    assert not amounts(*[10] * 11, *[-10] * 9)
    assert not amounts(*[0] * 6, 5, 6, 7)


def test_a_number_is_compared_with_the_others_of_its_cause() -> None:
    rows = [{"cause": "shipping", "amount": 5 + n} for n in range(12)]
    rows += [{"cause": "damaged", "amount": 80 + 4 * n} for n in range(12)]
    rows[3]["amount"] = 92

    assert found(refunds(*rows)) == {3: {MarkKind.FAR}}
    assert mark_lines(refunds(*rows)) == [
        "Call 4: amount is far from the others of the same cause; the median is €11.50."
    ]


def test_only_an_amount_over_what_was_paid_is_marked() -> None:
    rows = [{"amount": 10.0 + 7 * n, "paid": 10.0 + 7 * n} for n in range(20)]
    rows[4]["paid"] *= 2
    assert found(refunds(*rows)) == {}

    rows[9]["amount"] = round(rows[9]["paid"] * 1.9, 2)

    assert found(refunds(*rows)) == {9: {MarkKind.OVER}}


ORDERS = [f"ORD-{4217 + 13 * n}" for n in range(12)]
DOMAINS = [f"p{n}@{'acme.example' if n % 2 else 'gmail.com'}" for n in range(12)]
HOSTS = [f"https://shop.example/o/{n}" for n in range(12)]
FIRMS = ["Northwind Foods", "Contoso Labs", "Fabrikam Media", "Hilltop Papers"]
CASES = {
    "a value that repeats": ([*ORDERS, ORDERS[5]], {5, 12}, MarkKind.REPEATED),
    "values that repeat often": ([*ORDERS, *ORDERS[:5]], set[int](), None),
    "another value": (["EUR"] * 8 + ["USD"], {8}, MarkKind.OTHER),
    "a mistyped IBAN": ([*IBANS, "LU28001940O644750000"], {6}, MarkKind.CHECKSUM),
    "a mistyped card": ([*CARDS, "4111111111111112"], {6}, MarkKind.CHECKSUM),
    "a misspelt domain": ([*DOMAINS, "a@gmial.com"], {12}, MarkKind.LOOKALIKE),
    "a misspelt host": ([*HOSTS, "https://shp.example/"], {12}, MarkKind.LOOKALIKE),
    "a user in a URL": ([*HOSTS, "https://shop.example@a.example/"], {12}, None),
    "another host": ([*HOSTS, "https://evil.example/"], {12}, MarkKind.OTHER),
    "a letter of another alphabet": (
        [*FIRMS, "Oakland Inc", "C\u043entoso Labs"],
        {1, 5},
        MarkKind.LOOKALIKE,
    ),
    "a letter less": ([*FIRMS, "Oakland Inc", "Contoso Lab"], {1, 5}, None),
    "orders that follow each other": (
        [f"A-{1000 + n}" for n in range(12)],
        set[int](),
        None,
    ),
    "days that repeat": (
        [*(f"2026-11-{n:02}" for n in range(1, 20)), "2026-11-04"],
        set[int](),
        None,
    ),
}


@pytest.mark.parametrize(("values", "marked", "kind"), CASES.values(), ids=[*CASES])
def test_a_call_that_differs_from_the_others_is_marked(
    values: list[str], marked: set[int], kind: MarkKind | None
) -> None:
    marks = found(column("value", *values))

    assert marks.keys() == marked
    assert kind is None or all(kind in kinds for kinds in marks.values())


def test_a_customer_under_the_number_of_another_one_is_marked() -> None:
    rows = [
        {"customer": f"C{n // 2}7", "mail": f"p{n // 2}@a.example"} for n in range(20)
    ]
    rows[4]["customer"] = "C97"

    # Their address has two numbers now, so both calls with it are marked.
    assert found(refunds(*rows)) == {4: {MarkKind.APART}, 5: {MarkKind.APART}}


def test_a_text_that_names_another_order_is_marked() -> None:
    rows = [{"order": one, "body": f"About {one}: sorry."} for one in ORDERS]
    rows[7]["body"] = f"About {ORDERS[2]}0: sorry."

    assert found(refunds(*rows)) == {7: {MarkKind.APART}}


def seen(*counts: int) -> Approval:
    """Return payments, each with so many other calls to the same payee."""
    approval = column("iban", *(f"X{n}9" for n in range(len(counts))))
    window = WindowTotal(
        window="paid", by="args.iban", others_micro=0, within_ms=1, is_count=True
    )
    items = [
        item.with_(past=Past(totals=(window.with_(others_micro=n * MICRO),)))
        for item, n in zip(approval.items, counts, strict=True)
    ]
    return approval.replacing(*items)


def test_the_one_payee_without_earlier_calls_is_marked() -> None:
    assert found(seen(4, 1, 3, 0, 2, 9)) == {3: {MarkKind.NEW}}
    assert found(seen(4, 1, 0, 0, 0, 9)) == {}


def test_a_hidden_argument_has_no_mark() -> None:
    values = [{"iban": one} for one in (*IBANS, IBANS[2][:-1] + "9")]

    assert found(refunds(*values)) == {6: {MarkKind.CHECKSUM}}
    assert found(refunds(*values, redact=("args.iban",))) == {}


def test_only_waiting_calls_are_marked_and_an_edit_counts_as_it_would_run() -> None:
    approval = column("amount", *[50] * 20, 3000)
    last = approval.items[20]

    assert not found(approval.replacing(last.with_(state=ItemState.EXECUTED)))
    assert not found(approval.replacing(edited(last, {"amount": 51})))


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(
        st.dictionaries(
            hostile, hostile | st.floats(-9, 9) | st.none() | st.lists(hostile)
        ),
        min_size=5,
        max_size=9,
    )
)
def test_no_argument_breaks_or_enters_a_mark(rows: list[dict[str, Any]]) -> None:
    approval = refunds(*({"amount": n, **row} for n, row in enumerate(rows)))

    for line in mark_lines(approval):
        assert "\n" not in line
        assert len(line) <= 180


def test_prose_in_the_name_of_an_argument_is_quoted() -> None:
    name = "note (checked by finance)"
    rows = [{"amount": 10 + n, name: f"N-{n}"} for n in range(8)]
    rows[5][name] = rows[2][name]

    assert mark_lines(refunds(*rows)) == [
        f'Calls 3, 6: "{name}" repeats; in all other calls it is unique.'
    ]


def test_thousands_of_arguments_cost_no_more_than_thirty() -> None:
    many = {f"k{n}": f"v{n % 3}" for n in range(2000)}
    rows = [{"order": f"A-{n}", "more": many | {"n": str(n)}} for n in range(6)]

    columns = rows_of(refunds(*rows).items).columns

    assert "order" in columns
    assert len(columns) == 30


def test_public_numbers_are_right_and_one_changed_sign_is_not() -> None:
    assert all(map(is_iban, IBANS))
    assert is_iban("GB29 NWBK 6016 1331 9268 19")
    # As copied from a bank's page or a PDF.
    assert is_iban("gb29\u00a0NWBK\u202f6016 1331-9268\u201119\n")
    assert is_card("4111\u00a01111\u20131111-1111")
    assert all(map(is_card, CARDS))
    assert not any(is_iban(f"{one[:-1]}{(int(one[-1]) + 1) % 10}") for one in IBANS)
    assert not any(is_card(f"{one[:-1]}{(int(one[-1]) + 1) % 10}") for one in CARDS)


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("https://shop.example/a?b=c@d", False),
        ("https://shop.example:443/", False),
        ("https://shop.example@other.example/", True),
        ("https://shop.example\\@other.example/", True),
        ("https://10.0.0.7/", True),
        ("https://[::1]/", True),
        ("https://xn--shp-una.example/", True),
        ("https://sh\u043ep.example/", True),
        ("https://[broken/", True),
        ("mailto:a@b.example", False),
    ],
)
def test_a_url_that_reads_as_another_host_is_found(url: str, *, is_one: bool) -> None:
    assert is_misleading(url) is is_one


def test_texts_look_alike_by_a_letter_but_never_by_a_digit() -> None:
    assert look_alikes(["paypal.com", "paypa1.com"])
    assert look_alikes(["modern", "modem"])
    assert look_alikes(["gmail.com", "gmial.com"])
    assert not look_alikes(["order 1001", "order 1002"])
    assert not look_alikes(["red", "rod"])


def test_texts_that_read_the_same_are_one_group() -> None:
    texts = ["Northwind Foods" + "\u200b" * n for n in range(100)]

    assert look_alikes([*texts, "Contoso Labs"]) == [tuple(texts)]
