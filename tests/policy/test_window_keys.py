"""One resource has one key, however it is spelled, and no total is split by a trick."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter, ValidationError

from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.windows import window_key, window_uses
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.levels import examples

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "share": {"type": ["number", "null"]},
        "name": {"type": "string"},
        "order": {"$ref": "#/$defs/Order"},
        "ids": {"type": "array", "items": {"type": "integer"}},
    },
    "$defs": {
        "Order": {"type": "object", "properties": {"customer": {"type": "integer"}}}
    },
}
SEVEN: list[JsonValue] = [7, 7.0, "7", "07", "+7", "7.0", " 7 ", "0_7", "7\u200b"]


@pytest.mark.parametrize("spelling", SEVEN)
def test_a_number_that_is_declared_has_one_key(spelling: JsonValue) -> None:
    for path in (("id",), ("maybe",), ("share",), ("order", "customer"), ("ids", "0")):
        assert window_key(spelling, SCHEMA, path) == window_key(7)
    listed = window_key([spelling, 8], SCHEMA, ("ids",))
    assert listed == window_key([7, 8])
    order = window_key({"customer": spelling}, SCHEMA, ("order",))
    assert order == window_key({"customer": 7})


def test_a_decimal_number_that_is_declared_has_one_key() -> None:
    spellings: list[JsonValue] = [7.5, "7.5", "+07.50", "75e-1"]

    assert {window_key(one, SCHEMA, ["share"]) for one in spellings} == {'"7.5"'}


@pytest.mark.parametrize("text", ["R-07", "0" * 301 + "7"])
def test_what_is_no_number_stays_a_text_where_a_number_is_declared(text: str) -> None:
    assert window_key(text, SCHEMA, ["id"]) == window_key(text)


@pytest.mark.parametrize("value", [None, True, "", "  ", "\u200b", [], {}])
def test_what_names_nobody_has_no_key(value: JsonValue) -> None:
    with pytest.raises(ValueError, match="has no usable value"):
        window_key(value)


def test_a_truth_value_inside_a_list_is_neither_a_text_nor_a_number() -> None:
    lists: list[JsonValue] = [[True], ["true"], [1], [None], ["null"]]

    assert len({window_key(one) for one in lists}) == len(lists)


def test_texts_stay_apart() -> None:
    keys = {window_key(one, SCHEMA, ("name",)) for one in ("7", "07", "+7", "7.0")}

    assert len(keys) == 4


@settings(max_examples=examples(300), deadline=None)
@given(st.from_regex(r"\A[ +-]?[0-9_]{1,6}(\.[0-9]{0,2})?(e[0-9])? ?\Z"))
def test_what_a_tool_reads_as_one_integer_has_one_key(text: str) -> None:
    try:
        read = TypeAdapter(int).validate_python(text)
    except ValidationError:
        return

    assert window_key(text, SCHEMA, ("id",)) == window_key(read)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8),
    st.characters(categories=["Cf"]) | st.sampled_from("\u115f\u3164\ufe0f\x07"),
    st.integers(0, 8),
)
def test_no_invisible_character_makes_another_resource(
    text: str, invisible: str, place: int
) -> None:
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


POLICY = """
version: 1
windows:
  refunded: {tools: [refund], by: args.customer, sum: args.amount, within: 24h}
tools:
  refund: TOOL
agents:
  careful:
    tools:
      refund:
        args_schema:
          type: object
          properties: {customer: {type: integer}, amount: {type: number}}
"""
DECLARED: JsonObject = {
    "type": "object",
    "properties": {"customer": {"type": "integer"}, "amount": {"type": "number"}},
}
TYPED = """{args_schema:
    {type: object, properties: {customer: {type: integer}, amount: {type: number}}}}"""


@pytest.mark.parametrize(
    ("tool", "agent", "declared", "is_one"),
    [
        (TYPED, "a", None, True),
        ("{}", "a", DECLARED, True),
        ("{}", "careful", None, True),
        ("{}", "a", None, False),
        (TYPED.replace("integer", "string"), "a", DECLARED, False),
    ],
)
def test_the_type_comes_from_the_policy_and_then_from_the_agent(
    tool: str, agent: str, declared: JsonObject | None, *, is_one: bool
) -> None:
    policy = load_policy(POLICY.replace("TOOL", tool), "p.yml")

    keys = {
        window_uses(
            policy,
            agent=agent,
            tool="refund",
            args={"customer": one, "amount": 49},
            declared_schema=declared,
        )
        .uses[0]
        .key
        for one in ("7", "07", "+7", "7.0")
    }

    assert (len(keys) == 1) is is_one


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": []},
        {"properties": {"customer": {"$ref": "#/properties/customer"}}},
    ],
)
def test_a_schema_that_says_nonsense_changes_no_key(schema: JsonObject) -> None:
    policy = load_policy(POLICY.replace("TOOL", "{}"), "p.yml")

    found = window_uses(
        policy,
        agent="a",
        tool="refund",
        args={"customer": "07", "amount": 1},
        declared_schema=schema,
    )

    assert [use.key for use in found.uses] == ['"07"']
