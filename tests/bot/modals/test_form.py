"""A reviewer edits arguments in a form, and gets exactly the typed values."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.ids import Input
from keyturn.bot.modals import edit
from keyturn.bot.modals.form import build_form, errors_by_block, read_form
from keyturn.bot.modals.schema import Kind, path_label
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.edits import argument_errors
from keyturn.sandbox.blockkit import validate_modal
from tests.bot.samples import (
    REFUND_SCHEMA,
    a_refund,
    an_approval,
    an_item,
    frame,
)
from tests.bot.slack_state import chosen, refused, typed, untouched

ALL: Any = {
    "type": "object",
    "required": ["id", "amount", "count", "ok", "tier", "address"],
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


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (("id",), Kind.TEXT),
        (("text",), Kind.LONG_TEXT),
        (("amount",), Kind.NUMBER),
        (("count",), Kind.INTEGER),
        (("ok",), Kind.FLAG),
        (("maybe",), Kind.FLAG),
        (("tier",), Kind.CHOICE),
        (("size",), Kind.CHOICE),
        (("tags",), Kind.CHOICES),
        (("on",), Kind.DATE),
        (("note",), Kind.TEXT),
        (("price",), Kind.NUMBER),
        (("address", "city"), Kind.TEXT),
        (("address", "extra"), Kind.JSON),
        (("free",), Kind.JSON),
    ],
)
def test_each_schema_has_its_input(path: tuple[str, ...], kind: Kind) -> None:
    assert PATHS[path].plan.kind is kind


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        (("id",), "78292", "78292"),
        (("amount",), "449.50", 449.5),
        (("amount",), "0.1", 0.1),
        (("amount",), "-3", -3),
        (("count",), "7", 7),
        (("count",), "7.0", 7),
        (("on",), "2026-12-01", "2026-12-01"),
        (("note",), "hello", "hello"),
        (("free",), '{"a": [1, 2]}', {"a": [1, 2]}),
        (("free",), "null", None),
    ],
)
def test_what_is_typed_becomes_the_value(
    path: tuple[str, ...], text: str, value: Any
) -> None:
    args = _edited(typed(_state(), _block(*path), text))

    assert args == {**ARGS, path[0]: value}
    assert type(args[path[0]]) is type(value)


def test_a_nested_value_changes_alone() -> None:
    args = _edited(typed(_state(), _block("address", "city"), "York"))

    assert args == {**ARGS, "address": {"city": "York", "extra": 1}}


def test_a_nested_optional_value_can_be_added() -> None:
    args = _edited(typed(_state(), _block("address", "zip"), "LS1"))

    assert args["address"] == {"city": "Leeds", "extra": 1, "zip": "LS1"}


@pytest.mark.parametrize(
    ("path", "values", "value"),
    [
        (("ok",), ("false",), False),
        (("maybe",), ("true",), True),
        (("tier",), ("0",), "a"),
        (("tier",), ("2",), "1"),
        (("tier",), ("3",), True),
        (("size",), ("1",), "m"),
        (("tags",), ("0", "1"), ["x", "y"]),
        (("tags",), (), []),
    ],
)
def test_what_is_chosen_becomes_the_value(
    path: tuple[str, ...], values: tuple[str, ...], value: Any
) -> None:
    item = an_item(ARGS, args_schema={**ALL, "required": [*ALL["required"], "tags"]})
    fields = {field.path: field for field in build_form(item).fields}
    state = untouched(build_form(item).blocks)

    found = read_form(item, chosen(state, fields[path].block_id, *values))

    assert found.args[path[0]] == value
    assert type(found.args[path[0]]) is type(value)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("text",), "gone"), (("on",), "gone"), (("free",), "gone"), (("price",), "gone")],
)
def test_an_emptied_optional_argument_is_gone(
    path: tuple[str, ...], value: str
) -> None:
    args = _edited(typed(_state(), _block(*path), None))

    assert path[0] not in args, value


def test_an_emptied_nullable_argument_is_null() -> None:
    item = an_item({"note": "x"}, args_schema=ALL)
    (field,) = [one for one in build_form(item).fields if one.path == ("note",)]
    state = typed(untouched(build_form(item).blocks), field.block_id, None)

    assert read_form(item, state).args["note"] is None


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


def test_an_input_that_did_not_arrive_is_no_silent_default() -> None:
    state = _state()
    del state[_block("amount")]

    errors = refused(read_form, ITEM, state)

    assert list(errors) == [_block("amount")]


def test_line_ends_of_the_carrier_are_no_edit() -> None:
    found = read_form(ITEM, typed(_state(), _block("text"), "two\r\nlines"))

    assert not found.changed


def test_another_spelling_of_the_same_number_is_no_edit() -> None:
    found = read_form(ITEM, typed(_state(), _block("amount"), "899.50"))

    assert not found.changed


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


def test_choices_that_would_read_alike_are_written_as_json() -> None:
    (menu,) = [
        block
        for block in build_form(ITEM).blocks
        if block.get("block_id") == _block("tier")
    ]

    assert "'\"1\"'" in str(menu)
    assert "'1'" in str(menu)


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


def test_values_longer_than_an_input_say_why_they_stay() -> None:
    item = an_item({"body": "x" * 3_001, "to": "kim"})

    made = build_form(item)

    assert [field.is_editable for field in made.fields] == [False, True]
    assert "longer than 3,000 characters" in str(made.blocks)


def test_a_form_that_is_full_says_what_it_left_out() -> None:
    item = an_item({f"a{n:03}": n for n in range(90)})

    made = build_form(item)

    assert sum(field.is_editable for field in made.fields) == 60
    assert "the form is full" in str(made.blocks)
    assert "and 10 more" in str(made.blocks)


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


def test_a_call_without_arguments_says_that_nothing_can_be_edited() -> None:
    made = build_form(an_item({}))

    assert made.fields == ()
    assert "Nothing can be edited here" in str(made.blocks)


def _errors(item: Item, args: Any) -> dict[str, str]:
    return errors_by_block(item, argument_errors(item.args_schema, args))


def test_schema_errors_stand_under_their_inputs() -> None:
    item = a_refund()
    blocks = {field.path[0]: field.block_id for field in build_form(item).fields}

    found = _errors(item, {**item.args, "amount": 9_999, "currency": "XYZ"})

    assert set(found) == {blocks["amount"], blocks["currency"]}
    assert found[blocks["amount"]] == "This has to be at most 2000."


def test_an_error_inside_a_json_box_names_the_place() -> None:
    item = an_item({"free": {"a": [1]}}, args_schema=ALL)
    (field,) = [one for one in build_form(item).fields if one.path == ("free",)]

    found = errors_by_block(item, {"/free/a/0": "1 is too small"})

    assert found == {
        field.block_id: f"{path_label(('free', 'a', '0'))}: 1 is too small"
    }


def test_errors_without_an_input_stand_under_the_reason_together() -> None:
    found = errors_by_block(a_refund(), {"": "no", "/ghost~1~0": "unknown"})

    assert found == {Input.REASON: "no ghost/~: unknown"}


def test_an_error_about_an_object_stands_under_its_first_input() -> None:
    found = errors_by_block(ITEM, {"/address": "zip is missing"})

    assert found == {_block("address", "city"): "address: zip is missing"}


def test_no_error_repeats_a_redacted_value() -> None:
    item = a_refund(redact=("args.reason",), args_schema=REFUND_SCHEMA)

    found = errors_by_block(
        item, {"/reason": "'secret' is too long", "": "{'reason': 'secret'} is bad"}
    )

    assert "secret" not in str(found)
    assert "hidden by policy" in str(found)
