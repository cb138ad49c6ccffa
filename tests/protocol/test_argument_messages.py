"""Errors about a schema are written for the person who typed the value."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.gateway.protocol.edits import argument_errors, edit_errors
from keyturn.gateway.protocol.strict_json import JsonObject

SAID: list[tuple[Any, Any, str]] = [
    ({"type": "string"}, 1, "This has to be a text."),
    ({"type": ["integer", "null"]}, "x", "This has to be a whole number or null."),
    ({"enum": ["EU", "US", 7]}, "UK", 'schema allows only: "EU", "US", 7.'),
    ({"enum": [*range(12)]}, "x", "only: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more."),
    ({"const": "EU"}, "UK", 'schema allows only: "EU".'),
    ({"minLength": 5}, "abc", "The number of characters has to be at least 5."),
    ({"maxLength": 2}, "abc", "The number of characters has to be at most 2."),
    ({"minItems": 1}, [], "The number of entries has to be at least 1."),
    ({"uniqueItems": True}, [1, 1], "Nothing may be in this list twice."),
    ({"multipleOf": 5}, 7, "This has to be a multiple of 5."),
    ({"exclusiveMaximum": 5}, 7, "This has to be less than 5."),
    (
        {"pattern": "^[0-9]+$"},
        "a",
        "not have the form that the tool's schema asks for.",
    ),
    (
        {"pattern": "^[0-9]+$", "examples": [5, "5a", "5" * 81, "55"]},
        "a",
        """not have the form that the tool's schema asks for, such as "55".""",
    ),
    ({"not": {"type": "string"}}, "a", "The tool's schema does not allow this here"),
    ({"anyOf": [{"type": "null"}, {"maximum": 5}]}, 7, "This has to be at most 5."),
    (
        {"anyOf": [{"type": "boolean"}, {"maximum": 5, "type": "number"}]},
        "x",
        "The tool takes no such value here.",
    ),
]


@pytest.mark.parametrize(("schema", "value", "words"), SAID)
def test_each_rule_has_its_sentence(schema: Any, value: Any, words: str) -> None:
    errors = argument_errors({"properties": {"x": schema}}, {"x": value})

    assert [*errors] == ["/x"]
    assert words in errors["/x"]


def test_a_missing_argument_and_an_unknown_one_are_named() -> None:
    schema: JsonObject = {"properties": {"a": {}}, "required": ["a"]}

    errors = argument_errors(schema, {"b": 1})

    assert errors["/a"] == "This is needed."
    closed: JsonObject = {"properties": {"a": {}}, "additionalProperties": False}
    assert argument_errors(closed, {"b": 1, "a": 1}) == {
        "": "The tool takes no argument of this name: b."
    }


FORMATS = [
    ("date", "2026-11-30", "20261130"),
    ("time", "14:30:00", "25:00"),
    ("time", "14:30:00+01:00", "half past two"),
    ("date-time", "2026-11-30T14:30:00Z", "soon"),
    ("decimal", "11.50", "11,50"),
    ("date-time", "2026-11-30T14:30:00", "tomorrow"),
    ("email", "ana@example.com", "ana at example.com"),
    ("uri", "https://example.com/a?b#c", "example.com"),
    ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
    ("ipv4", "192.0.2.1", "192.0.2"),
    ("ipv6", "2001:db8::1", "192.0.2.1"),
]


@pytest.mark.parametrize(("name", "good", "bad"), FORMATS)
def test_an_edit_keeps_to_the_format(name: str, good: str, bad: str) -> None:
    text: JsonObject = {"type": "string", "format": name}
    optional: JsonObject = {"anyOf": [text, {"type": "null"}]}
    schema: JsonObject = {"properties": {"x": text, "y": optional}}

    assert edit_errors(schema, {}, {"x": good, "y": good}) == {}
    assert edit_errors(schema, {}, {"x": good, "y": None}) == {}
    errors = edit_errors(schema, {}, {"x": bad, "y": bad})

    assert [*errors] == ["/x", "/y"]
    assert all(why.startswith("This has to be a") for why in errors.values()), errors


SPELLINGS = [
    ("uri", "https://b.example", "https://b.example/"),
    (
        "uuid",
        "123e4567e89b12d3a456426614174000",
        "123e4567-e89b-12d3-a456-426614174000",
    ),
    ("date", "2026-11-30T00:00:00", "2026-11-30"),
    ("date-time", "2026-11-30", "2026-11-30T00:00:00"),
    ("date-time", "2026-03-29 03:30", "2026-03-29T03:30:00"),
    ("date-time", "2026-11-30T14:30:00+00:00", "2026-11-30T14:30:00Z"),
    ("time", "11:00", "11:00:00"),
    ("decimal", "+11.50", "11.50"),
    ("email", "ana@Example.com", "ana@example.com"),
    ("ipv6", "2001:DB8::1", "2001:db8::1"),
]


@pytest.mark.parametrize(("name", "typed", "read"), SPELLINGS)
def test_another_spelling_names_the_right_one(name: str, typed: str, read: str) -> None:
    schema: JsonObject = {"properties": {"x": {"type": "string", "format": name}}}

    said = f"The tool reads this as {read}. Please write it that way."
    assert edit_errors(schema, {}, {"x": typed}) == {"/x": said}
    assert edit_errors(schema, {}, {"x": read}) == {}


def test_a_format_that_the_agent_did_not_keep_to_binds_nobody() -> None:
    schema: JsonObject = {
        "properties": {"x": {"format": "email"}, "y": {"format": "email"}}
    }
    before: JsonObject = {"x": "support", "y": "ana@example.com"}

    assert edit_errors(schema, before, {**before, "x": "sales"}) == {}
    assert [*edit_errors(schema, before, {**before, "y": "ana"})] == ["/y"]


def test_arguments_of_another_schema_still_bind_the_edit_to_its_formats() -> None:
    elsewhere: JsonObject = {"$ref": "https://example.com/schema.json"}
    email: JsonObject = {"type": "string", "format": "email"}
    schema: JsonObject = {"properties": {"x": email, "y": elsewhere}}
    before: JsonObject = {"x": "ana@example.com", "y": 1}

    assert edit_errors(schema, before, {"x": "eve@example.com"}) == {}
    assert [*edit_errors(schema, before, {"x": "eve"})] == ["/x"]


def test_a_format_that_is_not_known_refuses_nothing() -> None:
    schema: JsonObject = {"properties": {"x": {"format": "phone"}}}

    assert edit_errors(schema, {}, {"x": "?"}) == {}
