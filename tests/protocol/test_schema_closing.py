"""A key that no object declares is refused, and nothing the schema refuses gets in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import JsonValue

from keyturn.gateway.policy.schemas import unusable
from keyturn.gateway.protocol.edits import argument_errors
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.levels import examples

A: JsonObject = {"properties": {"a": {}}}
B: JsonObject = {"type": "object", "properties": {"b": {}}}
CARD: JsonObject = {"type": "object", "properties": {"n": {}}}
TREE: JsonObject = {
    "$ref": "#/$defs/T",
    "$defs": {
        "T": {
            "type": "object",
            "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/T"}}},
        }
    },
}
ONE_OF: JsonObject = {
    "oneOf": [
        {"properties": {"c": A}},
        {"properties": {"c": {"properties": {"a": {}, "b": {}}}}},
    ]
}
OPTIONAL: JsonObject = {"anyOf": [CARD, {"type": "null"}]}
BY_REFERENCE: JsonObject = {
    "properties": {"c": {"anyOf": [{"$ref": "#/$defs/C"}, {"type": "null"}]}},
    "$defs": {"C": CARD},
}
BASED: JsonObject = {
    "allOf": [{"$ref": "#/$defs/B"}],
    **A,
    "$defs": {"B": B, "~/x": B},
}
EITHER: JsonObject = {
    "oneOf": [{**A, "required": ["a"]}, {**B, "required": ["b"]}],
}
IF_REFUND: JsonObject = {
    "properties": {"kind": {}, "amount": {}},
    "if": {"type": "object", "properties": {"kind": {"const": "refund"}}},
    "then": {"properties": {"amount": {"maximum": 50}}},
}
NO_WIRE: JsonObject = {
    "properties": {"kind": {}, "amount": {}},
    "not": {"type": "object", "properties": {"kind": {"const": "wire"}}},
}


REFUSED: list[tuple[JsonObject, JsonObject]] = [
    (A, {"a": 1, "evil": 2}),
    ({"type": ["object", "null"], **A}, {"evil": 2}),
    ({"type": "object", "properties": {}}, {"evil": 2}),
    ({"properties": {"c": {"properties": {"n": {}}}}}, {"c": {"evil": 1}}),
    ({"properties": {"c": OPTIONAL}}, {"c": {"n": 1, "evil": 1}}),
    (BY_REFERENCE, {"c": {"n": 1, "evil": 1}}),
    ({"properties": {"l": {"items": CARD}}}, {"l": [{"evil": 1}]}),
    ({"properties": {"l": {"prefixItems": [CARD]}}}, {"l": [{"evil": 1}]}),
    ({"patternProperties": {"^x-": {}}}, {"evil": 1}),
    ({"allOf": [A, B]}, {"a": 1, "b": 2, "evil": 3}),
    (BASED, {"a": 1, "b": 2, "evil": 3}),
    ({"$ref": "#/$defs/~0~1x", "$defs": BASED["$defs"]}, {"evil": 3}),
    ({"$ref": "#named", "$defs": {"x": {"$anchor": "named"}}}, {"evil": 3}),
    (TREE, {"kids": [{"kids": [{"evil": 1}]}]}),
    (EITHER, {"a": 1, "evil": 2}),
    ({**A, "dependentSchemas": {"a": B}}, {"a": 1, "b": 1, "evil": 1}),
    (IF_REFUND, {"kind": "refund", "amount": 100}),
    (NO_WIRE, {"kind": "wire", "amount": 100}),
    ({**A, "additionalProperties": {"type": "number"}}, {"x": "text"}),
    # Both branches fit, which oneOf refuses; closed, only the second one does.
    (ONE_OF, {"c": {"a": 1, "b": 1}}),
]


@pytest.mark.parametrize(("schema", "args"), REFUSED)
def test_an_undeclared_key_is_refused(schema: JsonObject, args: JsonObject) -> None:
    assert unusable(schema, args) is None
    assert argument_errors(schema, args)


OPEN: list[tuple[JsonObject, JsonObject]] = [
    ({}, {"x": 1}),
    ({"type": "object", "required": ["x"]}, {"x": 1}),
    ({"properties": {"c": {"type": "object"}}}, {"c": {"x": 1}}),
    ({"properties": {"c": True}}, {"c": {"x": 1}}),
    ({"properties": {"c": OPTIONAL}}, {"c": None}),
    ({"properties": {"c": {"anyOf": [CARD, True]}}}, {"c": {"x": 1}}),
    ({"anyOf": [CARD, {"type": "object"}]}, {"x": 1}),
    ({"allOf": [A, B]}, {"a": 1, "b": 2}),
    (BASED, {"a": 1, "b": 2}),
    (TREE, {"kids": [{"kids": []}]}),
    (EITHER, {"b": 1}),
    ({**A, "dependentSchemas": {"a": B}}, {"a": 1, "b": 1}),
    ({**A, "additionalProperties": True}, {"x": 1}),
    ({**A, "unevaluatedProperties": True}, {"x": 1}),
    ({**A, "allOf": [{"additionalProperties": True}]}, {"x": 1}),
    ({**A, "patternProperties": {"^x-": {}}}, {"a": 1, "x-1": 2}),
    ({"properties": {"c": {"const": CARD}}}, {"c": CARD}),
    (
        {"properties": {"type": {"const": "object"}, "properties": CARD}},
        {"type": "object", "properties": {"n": 1}},
    ),
    (IF_REFUND, {"kind": "refund", "amount": 5}),
    (IF_REFUND, {"kind": "gift", "amount": 500}),
]


@pytest.mark.parametrize(("schema", "args"), OPEN)
def test_a_declared_key_is_accepted(schema: JsonObject, args: JsonObject) -> None:
    assert argument_errors(schema, args) == {}


NAMES = st.sampled_from(["a", "b"])
LEAVES: list[JsonObject] = [{}, {"type": "null"}, {"const": 1}, {"type": "object"}]
FLAT: list[JsonValue] = [None, 1, "x"]


def joined(inner: st.SearchStrategy[JsonValue]) -> st.SearchStrategy[JsonValue]:
    """Join schemas in every way that there is."""
    listed = st.lists(inner, min_size=1, max_size=2)
    optional: Mapping[str, st.SearchStrategy[Any]] = {
        "properties": st.dictionaries(NAMES, inner, max_size=2),
        "items": inner,
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), listed),
        **dict.fromkeys(("if", "then", "else", "not"), inner),
        "required": st.lists(NAMES, unique=True, max_size=1),
    }
    return st.fixed_dictionaries({}, optional=optional)


def nested(inner: st.SearchStrategy[JsonValue]) -> st.SearchStrategy[JsonValue]:
    """Make objects with names that the schemas know and one they do not, and lists."""
    names = st.sampled_from(["a", "b", "evil"])
    return st.dictionaries(names, inner, max_size=3) | st.lists(inner, max_size=2)


SCHEMAS = st.recursive(st.sampled_from(LEAVES), joined, max_leaves=8)
ARGS = st.dictionaries(
    st.sampled_from(["a", "b", "evil"]),
    st.recursive(st.sampled_from(FLAT), nested, max_leaves=4),
    max_size=3,
)


@settings(max_examples=examples(400), deadline=None)
@given(SCHEMAS, ARGS)
def test_closing_a_schema_never_opens_it(schema: JsonObject, args: JsonObject) -> None:
    fits = Draft202012Validator(schema).is_valid(args)  # pyright: ignore[reportUnknownMemberType] - jsonschema ships partial types

    assert fits or argument_errors(schema, args)
