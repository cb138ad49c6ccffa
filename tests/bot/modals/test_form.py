"""A reviewer edits arguments in a form, and gets exactly the typed values."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.ids import Input
from keyturn.bot.modals import edit
from keyturn.bot.modals.form import build_form, errors_by_block, read_form
from keyturn.bot.modals.schema import path_label
from keyturn.gateway.approvals.record import Item
from keyturn.sandbox.blockkit import validate_modal
from tests.bot.samples import (
    a_refund,
    an_approval,
    an_item,
    frame,
)
from tests.bot.slack_state import chosen, refused, typed, untouched

ALL: Any = {
    "type": "object",
    "required": ["id", "amount", "count", "ok", "tier", "tags", "address", "filled"],
    "properties": {
        "id": {"type": "string", "maxLength": 10, "description": "The order"},
        "text": {"type": "string"},
        "amount": {"type": "number"},
        "count": {"type": "integer"},
        "ok": {"type": "boolean"},
        "maybe": {"type": ["boolean", "null"]},
        "tier": {"enum": ["a", 1, "1", True]},
        "size": {"enum": ["s", "m"]},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}},
        "on": {"type": "string", "format": "date"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "filled": {"type": ["string", "null"]},
        "price": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "address": {
            "type": "object",
            "required": ["city"],
            "properties": {"city": {"$ref": "#/$defs/city"}, "zip": {"type": "string"}},
        },
        "free": {},
    },
    "$defs": {"city": {"type": "string"}},
}
ARGS: Any = {
    "id": "78291",
    "text": "two\nlines",
    "amount": 899.5,
    "count": 2,
    "ok": True,
    "tier": 1,
    "tags": ["y"],
    "on": "2026-11-21",
    "note": None,
    "filled": "x",
    "price": 12.25,
    "address": {"city": "Leeds", "extra": 1},
    "free": {"a": [1]},
}
ITEM = an_item(ARGS, args_schema=ALL)
PATHS = {field.path: field for field in build_form(ITEM).fields}


def _block(*path: str) -> str:
    return PATHS[path].block_id


def _edited(state: Any) -> Any:
    return read_form(ITEM, state).args


def _state() -> Any:
    return untouched(build_form(ITEM).blocks)


GONE: Any = object()
ADDRESS = {"city": "Leeds", "extra": 1}


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        (("id",), "78292", "78292"),
        (("amount",), "449.50", 449.5),
        (("amount",), "-3", -3),
        (("count",), "7.0", 7),
        (("on",), "2026-12-01", "2026-12-01"),
        (("note",), "hello", "hello"),
        (("free",), '{"a": [1, 2]}', {"a": [1, 2]}),
        (("free",), "null", None),
        (("address", "city"), "York", ADDRESS | {"city": "York"}),
        (("address", "zip"), "LS1", ADDRESS | {"zip": "LS1"}),
        # Emptied: an optional argument is gone, and a nullable one is null.
        (("text",), None, GONE),
        (("on",), None, GONE),
        (("free",), None, GONE),
        (("filled",), None, None),
        # The carrier's line ends and another spelling are no change.
        (("text",), "two\r\nlines", "two\nlines"),
        (("amount",), "899.50", 899.5),
    ],
)
def test_what_is_typed_becomes_the_value(
    path: tuple[str, ...], text: str | None, value: Any
) -> None:
    found = read_form(ITEM, typed(_state(), _block(*path), text))

    expected = {name: one for name, one in ARGS.items() if name != path[0]}
    assert found.args == expected | ({} if value is GONE else {path[0]: value})
    assert type(found.args.get(path[0], GONE)) is type(value)
    assert found.changed == (found.args != ARGS)


@pytest.mark.parametrize(
    ("name", "values", "value"),
    [
        ("ok", ("false",), False),
        ("maybe", ("true",), True),
        ("tier", ("0",), "a"),
        ("tier", ("2",), "1"),
        ("tier", ("3",), True),
        ("size", ("1",), "m"),
        ("tags", ("0", "1"), ["x", "y"]),
        ("tags", (), []),
    ],
)
def test_what_is_chosen_becomes_the_value(
    name: str, values: tuple[str, ...], value: Any
) -> None:
    found = read_form(ITEM, chosen(_state(), _block(name), *values))

    assert found.args[name] == value
    assert type(found.args[name]) is type(value)


def test_an_input_that_did_not_arrive_is_no_silent_default() -> None:
    state = _state()
    del state[_block("amount")]

    assert [*refused(read_form, ITEM, state)] == [_block("amount")]


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        (("amount",), "lots", "Please write a number"),
        (("amount",), "NaN", "Please write a number"),
        (("amount",), "1e999", "too large"),
        (("amount",), "0.1234567890123456789", "more digits"),
        (("count",), "2.5", "whole number"),
        (("count",), "9007199254740992", "too large"),
        (("count",), None, "A value is needed"),
        (("on",), "tomorrow", "choose a date"),
        (("free",), "{a: 1}", "This is not JSON"),
        (("free",), '{"a": 1, "a": 2}', "This is not JSON"),
    ],
)
def test_what_cannot_be_meant_is_answered_beside_the_input(
    path: tuple[str, ...], text: str | None, sentence: str
) -> None:
    errors = refused(read_form, ITEM, typed(_state(), _block(*path), text))

    assert list(errors) == [_block(*path)]
    assert sentence in errors[_block(*path)]


@pytest.mark.parametrize("name", ["size", "ok"])
@pytest.mark.parametrize("value", ["9", "x", "-1", "\u0661"])
def test_a_choice_that_was_not_offered_is_refused(name: str, value: str) -> None:
    errors = refused(read_form, ITEM, chosen(_state(), _block(name), value))

    assert list(errors) == [_block(name)]


@pytest.mark.parametrize(
    "text", ["a\u200bb", " edge", "tab\tted", "e\u0301", "x" + " " * 90 + "y"]
)
def test_text_that_a_carrier_could_alter_is_edited_as_visible_json(text: str) -> None:
    item = an_item(
        {"t": text}, args_schema={"type": "object", "properties": ALL["properties"]}
    )

    (block,) = [
        block
        for block in untouched(build_form(an_item({"t": text})).blocks).values()
        if "value" in block
    ]

    assert block["value"]["value"].isascii()
    assert not read_form(item, untouched(build_form(item).blocks)).changed


def test_redacted_arguments_have_no_input_and_keep_their_value() -> None:
    item = an_item(
        {"card": {"number": "4111", "name": "Kim"}, "list": [{"pin": "9"}], "n": 1},
        redact=("args.card.number", "args.list.*.pin", "args.ghost"),
        args_schema={
            "type": "object",
            "properties": {"ghost": {"type": "string"}, "card": {"type": "object"}},
        },
    )

    made = build_form(item)
    state = untouched(made.blocks)
    found = read_form(item, typed(state, next(iter(state)), "2"))

    assert [field.path for field in made.fields if field.is_editable] == [("n",)]
    assert "4111" not in str(made.blocks)
    assert "'9'" not in str(made.blocks)
    assert "hidden by policy" in str(made.blocks)
    assert found.args == {**item.args, "n": 2}


@pytest.mark.parametrize(
    ("args", "editable", "words"),
    [
        ({}, 0, "Nothing can be edited here"),
        ({"body": "x" * 3_001, "to": "kim"}, 1, "longer than 3,000 characters"),
        ({f"a{n:03}": n for n in range(90)}, 60, "and 10 more"),
    ],
)
def test_a_form_says_what_it_leaves_out(args: Any, editable: int, words: str) -> None:
    made = build_form(an_item(args))

    assert sum(field.is_editable for field in made.fields) == editable
    assert words in str(made.blocks)


@pytest.mark.slow
def test_a_form_with_endless_menus_stays_within_a_view() -> None:
    words = [f"{'w' * 60} {n}" for n in range(90)]
    names = [f"a{n}" for n in range(60)]
    schema: Any = {"type": "object", "properties": {n: {"enum": words} for n in names}}
    item = an_item(dict.fromkeys(names, words[0]), args_schema=schema)

    view = edit.view(frame(an_approval(item)), 0)
    found = read_form(item, untouched(view["blocks"]))

    assert validate_modal(view) == []
    assert "the form is full" in str(view)
    assert not found.changed


@pytest.mark.parametrize(
    ("item", "errors", "found"),
    [
        # One is under its input; one inside a JSON box names the place.
        (ITEM, {"/amount": "Too much."}, {_block("amount"): "Too much."}),
        (
            ITEM,
            {"/free/a/0": "1 is too small"},
            {_block("free"): f"{path_label(('free', 'a', '0'))}: 1 is too small"},
        ),
        # One about an object is under its first input, and others under the reason.
        (
            ITEM,
            {"/address": "zip is missing"},
            {_block("address", "city"): "address: zip is missing"},
        ),
        (
            a_refund(),
            {"": "no", "/ghost~1~0": "unknown"},
            {Input.REASON: "no ghost/~: unknown"},
        ),
    ],
)
def test_an_error_stands_under_its_input(
    item: Item, errors: dict[str, str], found: dict[str, str]
) -> None:
    assert errors_by_block(item, errors) == found


def test_no_error_repeats_a_redacted_value() -> None:
    item = a_refund(redact=("args.reason",))

    found = errors_by_block(
        item, {"/reason": "'secret' is too long", "": "{'reason': 'secret'} is bad"}
    )

    assert "secret" not in str(found)
    assert "hidden by policy" in str(found)
