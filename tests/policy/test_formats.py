"""A description reads naturally, and omits nothing of the call."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from keyturn.gateway.errors import PolicyError
from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.formats import formatted
from keyturn.gateway.policy.load import load_policy

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
def test_a_value_that_does_not_fit_its_format_is_left_as_it_is(
    value: JsonValue, name: str
) -> None:
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
