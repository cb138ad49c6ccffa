"""Private parts in the texts of agents and tools are replaced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.approvals.evidence import HIDDEN
from keyturn.gateway.approvals.private_text import (
    PrivateData,
    private_values,
    without_private,
)
from keyturn.gateway.protocol.strict_json import JsonObject

ALL = tuple(PrivateData)
CARD = "(card number hidden)"
EMAIL = "(e-mail address hidden)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("card 4111 1111 1111 1111 is theirs", f"card {CARD} is theirs"),
        ("4111-1111-1111-1111", CARD),
        ("4111111111111111.", f"{CARD}."),
        ("amex 378282246310005", f"amex {CARD}"),
        ("nineteen 6304000000000000000", f"nineteen {CARD}"),
        # Other numbers next to it.
        ("4111 1111 1111 1111 12/27", f"{CARD} 12/27"),
        ("4111-1111-1111-1111 123", f"{CARD} 123"),
        ("paid 5 4111 1111 1111 1111", f"paid 5 {CARD}"),
        ("4111111111111111 5500000000000004", f"{CARD} {CARD}"),
        # Digits of another script are digits.
        ("٤١١١١١١١١١١١١١١١", CARD),
        # No check digit fits: an order number.
        ("order 4111 1111 1111 1112", "order 4111 1111 1111 1112"),
        ("1764176400000", "1764176400000"),
        ("id 94111111111111111119999", "id 94111111111111111119999"),
        ("write to ana@example.com today", f"write to {EMAIL} today"),
        ("<ana.alves+x@mail.example.co.uk>", f"<{EMAIL}>"),
        ("josé@bücher.example", EMAIL),
        ("@ana said 5 @ 3 each", "@ana said 5 @ 3 each"),
        ("", ""),
    ],
)
def test_what_has_the_form_of_private_data_is_hidden(text: str, shown: str) -> None:
    assert without_private(text, ALL) == shown


def test_only_what_the_policy_names_is_hidden() -> None:
    text = "4111111111111111 of ana@example.com"

    assert without_private(text, ()) == text
    assert without_private(text, [PrivateData.CARD_NUMBERS]).endswith("ana@example.com")


def test_values_that_cards_hide_are_hidden_in_words_as_well() -> None:
    args: JsonObject = {
        "card": {"number": "Secret-4711", "pin": 90210, "cvc": "123"},
        "keys": [{"value": "abcdef"}, {"value": "abcdefgh"}],
        "note": "to all",
        "on": True,
    }
    values = private_values(args, ["args.card", "args.keys.*.value"])

    said = "I use SECRET-4711, 90210, 123 and abcdefgh; see the note to all."

    assert values == {"Secret-4711", "90210", "abcdef", "abcdefgh"}
    assert without_private(said, ALL, values) == (
        f"I use {HIDDEN}, {HIDDEN}, 123 and {HIDDEN}; see the note to all."
    )


def test_of_very_many_values_nothing_of_a_long_text_is_shown() -> None:
    values = frozenset(f"aaaa{number}" for number in range(6000))

    assert without_private("a" * 400, ALL, values) == HIDDEN
    assert without_private("aaaa7, aaaaa", ALL, values) == f"{HIDDEN}, aaaaa"


@given(st.text(max_size=300), st.frozensets(st.text(min_size=4), max_size=5))
def test_any_text_loses_hidden_values(text: str, values: frozenset[str]) -> None:
    parts = without_private(text, (), values).split(HIDDEN)

    assert not [value for value in values for part in parts if value in part]
    assert without_private(text, ALL, values) is not None
