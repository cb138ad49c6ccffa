"""A call's amounts for each total are exact, or the reason why they are unknown."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter, ValidationError

from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.windows import (
    MAX_MICRO,
    WindowUse,
    micro,
    window_key,
    window_uses,
)
from tests.levels import examples

POLICY = load_policy(
    """\
version: 1
windows:
  refunded: {tools: [refund], by: args.customer, sum: args.money.amount, within: 24h}
  burst: {tools: ["*"], by: call.agent, sum: 1, within: 10m}
  asked: {tools: refund, by: requester, sum: 1, within: 1h}
  all: {tools: [refund, wire], sum: 1, within: 90s}
tools: {refund: {}, wire: {}}
""",
    "p.yml",
)


def test_a_call_adds_its_share_to_every_window_that_counts_its_tool() -> None:
    found = window_uses(
        POLICY,
        agent="support",
        tool="refund",
        args={"customer": "C1", "money": {"amount": 49.99}},
        requester="U0ANA",
    )

    assert found.problems == ()
    assert found.uses == (
        WindowUse(
            window="refunded", key='"c1"', amount_micro=49_990_000, within_ms=86_400_000
        ),
        WindowUse(
            window="burst", key='"support"', amount_micro=1_000_000, within_ms=600_000
        ),
        WindowUse(
            window="asked", key='"u0ana"', amount_micro=1_000_000, within_ms=3_600_000
        ),
        WindowUse(window="all", key="", amount_micro=1_000_000, within_ms=90_000),
    )


def test_another_tool_counts_only_where_it_is_named() -> None:
    found = window_uses(POLICY, agent="a", tool="look_up", args={})

    assert [use.window for use in found.uses] == ["burst"]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"money": {"amount": 1}}, "'refunded' is not known: args.customer is missing"),
        ({"customer": "C1"}, "args.money.amount is missing"),
        ({"customer": "C1", "money": {"amount": -1}}, "args.money.amount is negative"),
        ({"customer": "C1", "money": {"amount": "\u0663"}}, "is not a number that can"),
        ({"customer": "C1", "money": {"amount": math.nan}}, "is not a number that can"),
        ({"customer": 2.0**53, "money": {"amount": 1}}, "args.customer is not strict"),
        ({"customer": "C1", "money": {"amount": True}}, "is not a number that can be"),
        ({"customer": "C1", "money": {"amount": 1e300}}, "is too large to be added up"),
        ({"customer": " ", "money": {"amount": 1}}, "args.customer has no usable"),
    ],
)
def test_an_unknown_share_is_named(args: dict[str, JsonValue], problem: str) -> None:
    found = window_uses(POLICY, agent="a", tool="refund", args=args, requester="U1")

    assert len(found.problems) == 1
    assert problem in found.problems[0]
    assert [use.window for use in found.uses] == ["burst", "asked", "all"]


def test_nobody_who_asked_is_a_problem_of_a_window_by_requester() -> None:
    found = window_uses(
        POLICY,
        agent="a",
        tool="refund",
        args={"customer": "C1", "money": {"amount": 1}},
    )

    assert found.problems == (
        "The total 'asked' is not known: requester has no usable value.",
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (7, "7"),
        (7.0, " 7 "),
        ("ana@x.org", "ANA@X.ORG"),
        ("\ufb01", "FI"),
        ("\uff17", 7),
    ],
)
def test_spellings_of_a_resource_share_totals(one: JsonValue, other: JsonValue) -> None:
    assert window_key(one) == window_key(other)


@pytest.mark.parametrize(
    ("one", "other"), [("C1", "C2"), (["a"], "a"), ({"a": 1}, {"a": 2}), ("1", "1.5")]
)
def test_other_resources_do_not(one: JsonValue, other: JsonValue) -> None:
    assert window_key(one) != window_key(other)


@given(st.decimals(0, 9_000_000_000, places=9), st.booleans())
def test_amounts_are_nearest_millionths(amount: Decimal, as_text: object) -> None:
    value: JsonValue = f"{amount:f}" if as_text else float(amount)

    found = micro(value)

    exact = Decimal(str(value)) * 1_000_000
    assert found == int(exact.to_integral_value(ROUND_HALF_UP))
    assert 0 <= found <= MAX_MICRO


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["amount", "x"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["customer", "money", "x"]), JSON))
def test_every_window_counts_or_says_why_not(args: dict[str, JsonValue]) -> None:
    found = window_uses(POLICY, agent="a", tool="refund", args=args, requester="U1")

    assert len(found.uses) + len(found.problems) == 4
    assert all(0 <= use.amount_micro <= MAX_MICRO for use in found.uses)


SEVEN: list[JsonValue] = [7, 7.0, "7", "07", "+7", "7.0", " 7 ", "0_7", "7\u200b"]


@pytest.mark.parametrize("spelling", SEVEN)
def test_a_number_has_one_key(spelling: JsonValue) -> None:
    assert window_key(spelling) == window_key(7)
    assert window_key([spelling, 8]) == window_key([7, 8])
    assert window_key({"customer": spelling}) == window_key({"customer": 7})


def test_a_decimal_number_has_one_key() -> None:
    spellings: list[JsonValue] = [7.5, "7.5", "+07.50", "75e-1"]

    assert {window_key(one) for one in spellings} == {'"7.5"'}


@pytest.mark.parametrize("text", ["R-07", "0" * 301 + "7"])
def test_what_is_no_number_stays_a_text(text: str) -> None:
    assert window_key(text) == f'"{text.lower()}"'


@pytest.mark.parametrize("value", [None, True, "", "  ", "\u200b", [], {}])
def test_what_names_nobody_has_no_key(value: JsonValue) -> None:
    with pytest.raises(ValueError, match="has no usable value"):
        window_key(value)


def test_a_truth_value_inside_a_list_is_neither_a_text_nor_a_number() -> None:
    lists: list[JsonValue] = [[True], ["true"], [1], [None], ["null"]]

    assert len({window_key(one) for one in lists}) == len(lists)


@settings(max_examples=examples(300), deadline=None)
@given(st.from_regex(r"\A[ +-]?[0-9_]{1,6}(\.[0-9]{0,2})?(e[0-9])? ?\Z"))
def test_what_a_tool_reads_as_one_integer_has_one_key(text: str) -> None:
    try:
        read = TypeAdapter(int).validate_python(text)
    except ValidationError:
        return

    assert window_key(text) == window_key(read)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8),
    st.characters(categories=["Cf"]) | st.sampled_from("\u115f\u3164\ufe0f\x07"),
    st.integers(0, 8),
)
def test_no_hidden_character_splits_them(text: str, invisible: str, place: int) -> None:
    split = text[:place] + invisible + text[place:]

    assert key_of(split) == key_of(text)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=8))
def test_what_is_folded_stays_as_it_is(text: str) -> None:
    key = key_of(text)

    if key is not None:
        assert key_of(key[1:-1].replace('\\"', '"').replace("\\\\", "\\")) == key


def key_of(text: str) -> str | None:
    """Return the key of a text; None if it is empty or is not strict JSON."""
    try:
        return window_key(text)
    except ValueError:
        return None
