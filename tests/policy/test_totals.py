"""Totals over many calls are exact, hide hidden values, and name omitted ones."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from keyturn.gateway.errors import PolicyError
from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.formats import EXACT, Call, Total, formatted, total_of
from keyturn.gateway.policy.load import load_policy

FILE = """\
version: 1
defaults: {needs: U0ANA}
tools:
  refund:
"""


def total(*amounts: JsonValue, named: str = "args.amount|eur") -> Total:
    return total_of(
        named, [Call(index, {"amount": one}) for index, one in enumerate(amounts)]
    )


def test_a_total_is_exact_where_floats_are_not() -> None:
    assert total(0.1, 0.2, "0.3", 1).text() == "€1.60"
    assert total(*[0.1] * 99, named="args.amount").text() == "9.9"
    assert total(10, 5, named="args.amount|eur_minor").text() == "€0.15"


@given(
    st.lists(st.decimals(-(10**9), 10**9, places=6).map(str), min_size=1, max_size=99)
)
def test_a_total_is_the_sum_of_its_parts(amounts: list[str]) -> None:
    found = total(*amounts, named="args.amount")
    half = range(len(amounts) // 2)
    rest = range(len(amounts) // 2, len(amounts))

    parts = [found.text(half), found.text(rest)]
    values = [Decimal(one.replace(",", "")) for one in (*parts, found.text())]

    assert EXACT.add(values[0], values[1]) == values[2]
    assert values[2] == sum(int(Decimal(one) * 10**6) for one in amounts) / Decimal(
        10**6
    )


def test_what_has_no_number_is_left_out_and_named() -> None:
    odd: list[JsonValue] = [None, "about 5", True, [3], {"a": 3}]

    found = total(1, *odd, "2")

    assert found.text() == "€3.00"
    assert found.without == (1, 2, 3, 4, 5)


def test_long_numbers_are_added_up_to_fifty_digits() -> None:
    most, least = "9" * 50, "0." + "0" * 48 + "1" * 50

    found = total(most, least, *["1" * 25] * 97, named="args.amount")

    summed = int(most) + 97 * int("1" * 25)
    assert found.text() == f"{summed:,}.{'0' * 48}{'1' * 50}"
    assert found.without == ()


def test_a_number_beyond_that_is_left_out_as_too_long() -> None:
    long: list[JsonValue] = ["1" * 51, "0." + "0" * 50 + "1", 1e60]

    found = total(1, *long, "about 5")

    assert found.text() == "€1.00"
    assert found.without == (1, 2, 3, 4)


@pytest.mark.parametrize("hidden", ["args.line", "args.line.amount", "args.*.amount"])
def test_what_the_card_hides_is_in_no_total(hidden: str) -> None:
    calls = [
        Call(0, {"line": {"amount": 5}}),
        Call(1, {"line": {"amount": 7}}, (hidden,)),
        Call(2, {"line": {"amount": "about 9"}}, (hidden,)),
    ]

    found = total_of("args.line.amount", calls)

    assert found.text() == "5"
    assert found.hidden == (1, 2)


def test_a_total_hides_exactly_what_the_card_hides() -> None:
    calls = [
        Call(0, {"amount": 5}, ("args.card",)),
        # The card hides a plain value whose members are hidden.
        Call(1, {"amount": 6}, ("args.amount.cents",)),
    ]

    found = total_of("args.amount", calls)

    assert (found.numbers, found.hidden) == ({0: Decimal(5)}, (1,))


def test_the_median_is_shown_in_the_format() -> None:
    assert total(1, 2, 3, 10).usual() == "€2.50"


def test_a_policy_names_what_is_added_up() -> None:
    policy = load_policy(f"{FILE}    totals: args.amount|eur\n", "policy.yml")

    found = evaluate(policy, agent="support", tool="refund", args={})

    assert found.totals == ("args.amount|eur",)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("totals: amount", "is no argument; write args.amount|eur"),
        ("totals: args.day|date", "a format without a sum"),
        ("totals: [args.a, args.b, args.c, args.d]", "at most 3"),
        (
            "{totals: args.b, args_schema: {properties: {a: {type: number}}}}",
            "names 'args.b'",
        ),
        (
            "{totals: args.a, args_schema: {properties: {a: {type: boolean}}}}",
            "cannot be summed",
        ),
    ],
)
def test_totals_that_could_not_be_shown_are_refused(rule: str, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(f"{FILE}    {rule}\n", "policy.yml")

    assert words in str(caught.value)


NUMBERS = st.one_of(
    st.integers(-(10**15), 10**15),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=4).map(str),
)


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (899, "eur", "€899.00"),
        (899.5, "eur", "€899.50"),
        ("1299.90", "usd", "$1,299.90"),
        (89900, "eur_minor", "€899.00"),
        (1200, "jpy_minor", "¥1,200"),
        (1234567, "number", "1,234,567"),
        ("2026-11-03", "date", "3 Nov 2026"),
        ("2026-11-03T14:05:00Z", "date", "3 Nov 2026, 14:05 UTC"),
        ("2026-11-03T14:05:07+05:45", "date", "3 Nov 2026, 14:05:07 UTC+05:45"),
    ],
)
def test_values_read_as_people_write_them(
    value: JsonValue, name: str, text: str
) -> None:
    assert formatted(value, name) == text


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (True, "eur"),
        ("12,50", "eur"),
        ("1e3", "eur"),
        ("٣", "eur"),
        (float("nan"), "eur"),
        (float("inf"), "number"),
        ("20261103", "date"),
        ("2026-11-03 or later", "date"),
    ],
)
def test_a_value_that_fits_no_format_is_unchanged(value: JsonValue, name: str) -> None:
    assert formatted(value, name) is None


@given(NUMBERS, st.sampled_from(["eur", "jpy", "number", "kwd"]))
def test_no_digit_is_lost(value: float | str, name: str) -> None:
    text = formatted(value, name)

    if text is not None:
        digits = "".join(sign for sign in text if sign.isdecimal() or sign in "-.")
        assert Decimal(digits) == Decimal(str(value))


def description(template: str, **args: JsonValue) -> str:
    policy = load_policy(
        "version: 1\ntools:\n  pay:\n    redact: [args.card, args.secret]\n"
        f"    description: {template!r}\n",
        "policy.yml",
    )
    return evaluate(policy, agent="a", tool="pay", args=args).description


def test_a_description_formats_what_it_names() -> None:
    text = description("Pay {args.amount|eur} on {args.day|date}", amount=5, day="soon")

    assert text == "Pay €5.00 on soon"


def test_a_format_shows_nothing_that_is_hidden_or_missing() -> None:
    text = description(
        "{args.secret|number} {args.card.cvc|number} {args.gone|eur}",
        secret=1,
        card={"cvc": 123},
    )

    assert text == "•••••• (hidden by policy) •••••• (hidden by policy) (missing)"


@pytest.mark.parametrize("name", ["euro", "EUR", "", "eur_", "minor", "number|eur"])
def test_an_unknown_format_is_refused_at_load(name: str) -> None:
    with pytest.raises(PolicyError, match=r"write a currency \(eur; .* or date"):
        description(f"Pay {{args.amount|{name}}}", amount=5)


def test_a_link_takes_values_as_they_are() -> None:
    with pytest.raises(PolicyError, match="a link takes each value as it is"):
        load_policy(
            "version: 1\ntools: {pay: {link: 'https://a.example/{args.n|number}'}}",
            "policy.yml",
        )


def test_the_format_of_a_description_counts_before_that_of_a_total() -> None:
    policy = load_policy(
        "version: 1\n"
        "defaults: {channel: C0REFUNDS, needs: [U0ANA]}\n"
        "tools:\n  pay:\n    description: Pay {args.fee|eur} until {args.due|date}\n"
        "    totals: [args.count, args.fee|usd, args.net.fee|gbp]\n",
        "policy.yml",
    )

    found = evaluate(policy, agent="a", tool="pay", args={"count": 1, "fee": 2})

    assert found.formats == ("args.fee|eur", "args.due|date", "args.net.fee|gbp")
