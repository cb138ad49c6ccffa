"""A reviewer edits arguments in a form, and gets exactly the typed values."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.ids import Input
from keyturn.bot.modals import edit
from keyturn.bot.modals.form import (
    NULL,
    TOO_LONG,
    UNSET,
    BadInput,
    build_form,
    errors_by_block,
    field_input,
    raw_value,
    read_form,
)
from keyturn.bot.modals.schema import (
    ABSENT,
    Kind,
    is_same,
    path_label,
    plan,
    required,
    resolved,
)
from keyturn.gateway.approvals.record import Item
from keyturn.sandbox.blockkit import validate_modal
from tests.bot.samples import a_refund, an_approval, an_item, frame
from tests.bot.slack_state import State, chosen, refused, typed, untouched

TEXT: Any = {"type": "string"}
DATE = TEXT | {"format": "date"}
MOMENT = TEXT | {"format": "date-time"}
NUMBER: Any = {"type": "number"}
WHOLE: Any = {"type": "integer"}
TEXTS: Any = {"type": "array", "items": TEXT}
NULLABLE: Any = {"type": ["string", "null"]}
MENU: Any = {"enum": ["a", 1, "1", True]}
FLAG: Any = {"type": "boolean"}
X = "field:0"
GONE: Any = ...
AT = 1_796_052_600  # 2026-11-30 15:30:00 UTC


def call(value: Any, schema: Any, *, required: bool = True) -> Item:
    """Return a call whose argument ``x`` has this value, if any, and schema."""
    whole = {"properties": {"x": schema}, "required": ["x"] if required else []}
    return an_item({} if value is GONE else {"x": value}, args_schema=whole)


def opened(item: Item) -> State:
    """Return the state of the form as Slack sends it untouched."""
    view = edit.view(frame(an_approval(item)), 0)
    assert validate_modal(view) == []
    return untouched(view["blocks"])


def args_of(value: Any) -> Any:
    return {} if value is GONE else {"x": value}


@pytest.mark.parametrize(
    ("schema", "before", "text", "after"),
    [
        (TEXT, "78291", "78292", "78292"),
        # A text may read as one of our choices.
        (TEXT, "a", UNSET, UNSET),
        (NUMBER, 899.5, "449.50", 449.5),
        (NUMBER, 5, "-3", -3),
        (WHOLE, 2, "7.0", 7),
        (DATE, "2026-11-21", "2026-12-01", "2026-12-01"),
        ({}, {"b": 1}, '{"a": [1, 2]}', {"a": [1, 2]}),
        ({}, {"b": 1}, "null", None),
        (
            TEXTS,
            ["ana@x.io", "bob@x.io"],
            " bob@x.io \n\neve@x.io",
            ["bob@x.io", "eve@x.io"],
        ),
        # An emptied value is what its schema has for it.
        (NULLABLE, "x", None, None),
        (TEXTS, ["a"], None, []),
        (TEXTS | {"type": ["array", "null"]}, ["a"], None, None),
        # A picked time is written like the one before.
        (MOMENT, "2026-11-30T14:30:00Z", AT, "2026-11-30T15:30:00Z"),
        (MOMENT, "2026-11-30T15:30:00+01:00", AT, "2026-11-30T16:30:00+01:00"),
        (MOMENT, GONE, AT, "2026-11-30T15:30:00Z"),
        # The carrier's line ends and another spelling are no change.
        (TEXT, "two\nlines", "two\r\nlines", "two\nlines"),
        (NUMBER, 899.5, "899.50", 899.5),
    ],
)
def test_what_is_typed_becomes_the_value(
    schema: Any, before: Any, text: Any, after: Any
) -> None:
    item = call(before, schema)

    found = read_form(item, typed(opened(item), X, text))

    assert found.args == args_of(after)
    assert type(found.args["x"]) is type(after)
    assert found.changed == (before != after)


@pytest.mark.parametrize(
    ("schema", "before"), [(TEXT, "two"), (DATE, "2026-11-21"), ({}, 1), (TEXTS, ["a"])]
)
def test_an_emptied_optional_argument_is_gone(schema: Any, before: Any) -> None:
    item = call(before, schema, required=False)

    assert read_form(item, typed(opened(item), X, None)).args == {}


def test_without_a_schema_nothing_is_marked_as_optional() -> None:
    item = an_item({"x": "two", "flag": True, "in": {"n": 1}}, args_schema=None)

    form = build_form(item)

    fields = [field_input(one) for one in form.fields]
    assert [one.get("optional", False) for one in fields] == [False] * 3
    assert "can be changed, but not removed" in str(form.blocks[-1])


@pytest.mark.parametrize(
    ("schema", "before", "choices", "after"),
    [
        (FLAG, True, ["false"], False),
        (MENU, 1, ["0"], "a"),
        (MENU, 1, ["2"], "1"),
        (MENU, 1, ["3"], True),
        (
            {"type": "array", "items": {"enum": ["x", "y"]}},
            ["y"],
            ["0", "1"],
            ["x", "y"],
        ),
        ({"type": "array", "items": {"enum": ["x", "y"]}}, ["y"], [], []),
    ],
)
def test_what_is_chosen_becomes_the_value(
    schema: Any, before: Any, choices: list[str], after: Any
) -> None:
    item = call(before, schema)

    found = read_form(item, chosen(opened(item), X, *choices)).args["x"]

    assert (found, type(found)) == (after, type(after))


@pytest.mark.parametrize(
    ("before", "choice", "after"),
    [
        (True, NULL, None),
        (True, UNSET, GONE),
        (None, UNSET, GONE),
        (GONE, NULL, None),
        (None, None, None),
        (GONE, None, GONE),
    ],
)
@pytest.mark.parametrize(
    "schema", [{"enum": [True, None]}, {"type": ["boolean", "null"]}]
)
def test_a_menu_keeps_null_apart_from_nothing(
    schema: Any, before: Any, choice: str | None, after: Any
) -> None:
    item = call(before, schema, required=False)
    state = opened(item)

    found = read_form(item, chosen(state, X, choice) if choice else state)

    assert found.args == args_of(after)


@pytest.mark.parametrize(
    ("schema", "before", "text", "sentence"),
    [
        (NUMBER, 5, "lots", "Please write a number"),
        (NUMBER, 5, "NaN", "Please write a number"),
        (NUMBER, 5, "1e999", "too large"),
        (NUMBER, 5, "0.1234567890123456789", "more digits"),
        (WHOLE, 2, "2.5", "whole number"),
        (WHOLE, 2, "9007199254740992", "too large"),
        (WHOLE, 2, None, "A value is needed"),
        (DATE, "2026-11-21", "tomorrow", "choose a date"),
        (MOMENT, "2026-11-30T14:30:00Z", "1796052600", ""),
        (MOMENT, "2026-11-30T14:30:00Z", True, ""),
        ({}, 1, "{a: 1}", "This is not JSON"),
        ({}, 1, '{"a": 1, "a": 2}', "This is not JSON"),
    ],
)
def test_what_cannot_be_meant_is_answered_beside_the_input(
    schema: Any, before: Any, text: Any, sentence: str
) -> None:
    item = call(before, schema)

    errors = refused(read_form, item, typed(opened(item), X, text))

    assert [*errors] == [X]
    assert sentence in errors[X]


@pytest.mark.parametrize("schema", [{"enum": ["s", True]}, FLAG])
@pytest.mark.parametrize("value", ["9", "x", "-1", "\u0661"])
def test_a_choice_that_was_not_offered_is_refused(schema: Any, value: str) -> None:
    item = call(True, schema)  # noqa: FBT003 - the value of the argument

    assert [*refused(read_form, item, chosen(opened(item), X, value))] == [X]


def test_an_input_that_did_not_arrive_is_no_silent_default() -> None:
    assert [*refused(read_form, call(5, NUMBER), {})] == [X]


ADDRESS = call(
    {"city": "Leeds", "extra": 1},
    {"type": "object", "properties": {"city": TEXT, "zip": TEXT}, "required": ["city"]},
)


@pytest.mark.parametrize(("name", "text"), [("city", "York"), ("zip", "LS1")])
def test_a_nested_value_changes_alone(name: str, text: str) -> None:
    blocks = {field.path: field.block_id for field in build_form(ADDRESS).fields}

    found = read_form(ADDRESS, typed(opened(ADDRESS), blocks["x", name], text))

    assert found.args == {"x": {"city": "Leeds", "extra": 1} | {name: text}}


def test_the_title_and_the_unit_of_an_argument_stand_under_its_input() -> None:
    words = {"title": "Refund", "x-unit": "EUR", "description": "Net"}
    (field,) = build_form(
        call(9.5, NUMBER | words).with_(has_policy_schema=True)
    ).fields

    hint: Any = field_input(field)["hint"]
    assert hint["text"] == "Refund, EUR. Net"


def test_a_text_longer_than_an_input_stays_as_it_is_and_is_named() -> None:
    item = call("We are sorry. " * 300 + "Yours", TEXT)

    assert f"Stays as it is ({TOO_LONG}): x" in str(build_form(item).blocks)
    assert not read_form(item, opened(item)).changed


@pytest.mark.parametrize(
    "text", ["a\u200bb", " edge", "tab\tted", "e\u0301", "x" + " " * 90 + "y"]
)
def test_text_that_a_carrier_could_alter_is_edited_as_visible_json(text: str) -> None:
    item = call(text, TEXT)
    state = opened(item)

    assert str(state[X]["value"]["value"]).isascii()
    assert not read_form(item, state).changed


def test_redacted_arguments_have_no_input_and_keep_their_value() -> None:
    item = an_item(
        {"card": {"number": "4111", "name": "Kim"}, "list": [{"pin": "9"}], "n": 1},
        redact=("args.card.number", "args.list.*.pin", "args.ghost"),
        args_schema={"properties": {"ghost": TEXT, "card": {"type": "object"}}},
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

    assert not read_form(item, opened(item)).changed
    assert "the form is full" in str(build_form(item).blocks)


@pytest.mark.parametrize(
    ("item", "errors", "found"),
    [
        (call(5, NUMBER), {"/x": "Too much."}, {X: "Too much."}),
        # One inside a JSON box names the place.
        (
            call({"a": [1]}, {}),
            {"/x/a/0": "1 is too small"},
            {X: f"{path_label(('x', 'a', '0'))}: 1 is too small"},
        ),
        # One about an object is under its first input, and others under the reason.
        (ADDRESS, {"/x": "zip is missing"}, {X: "x: zip is missing"}),
        (
            a_refund(),
            {"": "no", "/ghost~1~0": "unknown"},
            {Input.REASON: "no ghost/~: unknown"},
        ),
        # None repeats a value that the policy hides.
        (
            a_refund(redact=("args.reason",)),
            {"": "{'reason': 'secret'} is bad"},
            {Input.REASON: "A value hidden by policy does not fit."},
        ),
    ],
)
def test_an_error_stands_under_its_input(
    item: Item, errors: dict[str, str], found: dict[str, str]
) -> None:
    assert errors_by_block(item, errors) == found


ROOT: Any = {
    "$defs": {
        "name": {"type": "string", "maxLength": 5},
        "loop": {"$ref": "#/$defs/loop"},
        "again": {"$ref": "#/$defs/name"},
        "a/b": {"type": "integer"},
        "text": "no schema",
    }
}
STRING = {"type": "string"}
DATE_INPUT = STRING | {"format": "date"}
DATE_TIME = STRING | {"format": "date-time"}
TEXTS_INPUT = {"type": "array", "items": STRING}
CHOICES = {"type": "array", "items": {"enum": ["a"]}}
EITHER = {"anyOf": [{"type": "number"}, STRING]}


@pytest.mark.parametrize(
    ("schema", "value", "kind"),
    [
        ({"$ref": "#/$defs/again"}, "x", Kind.TEXT),
        ({"$ref": "#/$defs/a~1b"}, 1, Kind.INTEGER),
        ({"$ref": "#/$defs/loop"}, "x", Kind.JSON),
        ({"$ref": "https://example.com/s.json"}, "x", Kind.JSON),
        ({"$ref": 7}, "x", Kind.JSON),
        ({}, "x", Kind.JSON),
        (STRING | {"not": {"const": "x"}}, "y", Kind.JSON),
        ({"type": ["string", "number"]}, "x", Kind.JSON),
        ({"type": ["string", "null"]}, None, Kind.TEXT),
        (STRING, None, Kind.JSON),
        (STRING, ABSENT, Kind.TEXT),
        (STRING, "x" * 81, Kind.LONG_TEXT),
        (STRING, "two\nlines", Kind.LONG_TEXT),
        ({"type": "integer"}, 2.5, Kind.JSON),
        ({"type": "number"}, True, Kind.JSON),
        ({"type": "number"}, 1e-30, Kind.NUMBER),
        ({"type": "number"}, 5e-324, Kind.JSON),
        ({"type": ["boolean", "null"]}, True, Kind.FLAG),
        (DATE_INPUT, "2026-11-21", Kind.DATE),
        (DATE_INPUT, "2026-02-30", Kind.TEXT),
        (DATE_INPUT, "2026\u200b", Kind.JSON),
        (STRING | {"format": "time"}, "14:30:00", Kind.TEXT),
        (DATE_TIME, "2026-11-30T14:30:00+01:00", Kind.MOMENT),
        (DATE_TIME, "2026-11-30T14:30:00", Kind.TEXT),
        (DATE_TIME, "2026-11-30T14:30:09Z", Kind.TEXT),
        (DATE_TIME, "1970-01-01T00:00:00Z", Kind.TEXT),
        ({"const": "x"}, "x", Kind.CHOICE),
        ({"enum": ["x", None]}, None, Kind.CHOICE),
        ({"enum": "x"}, "x", Kind.JSON),
        ({"enum": ["x"]}, "y", Kind.JSON),
        ({"enum": ["x" * 76, "y"]}, "y", Kind.JSON),
        ({"enum": list(range(100))}, 5, Kind.JSON),
        ({"enum": list(range(99))}, 5, Kind.CHOICE),
        (CHOICES, ["a"], Kind.CHOICES),
        (CHOICES, ["a", "a"], Kind.JSON),
        (TEXTS_INPUT, ["b", "b"], Kind.LINES),
        (TEXTS_INPUT, [], Kind.LINES),
        (TEXTS_INPUT, ["a", ""], Kind.JSON),
        (TEXTS_INPUT, [" a"], Kind.JSON),
        (TEXTS_INPUT, ["a\nb"], Kind.JSON),
        ({"type": "array", "items": {"type": "number"}}, [1], Kind.JSON),
        (EITHER, "x", Kind.TEXT),
        (EITHER, 12.25, Kind.NUMBER),
        (EITHER, True, Kind.JSON),
        ({"oneOf": [{"type": "object"}, {"type": "null"}]}, {}, Kind.JSON),
    ],
)
def test_the_input_fits_schema_and_value(schema: Any, value: Any, kind: Kind) -> None:
    assert plan(schema, value, ROOT).kind is kind


def test_what_stands_beside_a_reference_holds_too() -> None:
    found = resolved({"$ref": "#/$defs/name", "maxLength": 3}, ROOT)

    assert found == {"type": "string", "maxLength": 3}


def test_required_names_are_names_only() -> None:
    assert required({"required": ["a", 1]}, {}, {}) == {"a"}
    assert required({"required": "a"}, {}, {}) == frozenset()


def test_true_is_not_one() -> None:
    assert not is_same(True, 1)  # noqa: FBT003 - the value is the point
    assert is_same(1, 1.0)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ({"value": 1}, Kind.TEXT),
        ({"selected_option": "x"}, Kind.CHOICE),
        ({"selected_options": [1]}, Kind.CHOICES),
        ({"selected_date": 1}, Kind.DATE),
    ],
)
def test_a_state_of_another_shape_is_answered(state: Any, kind: Kind) -> None:
    with pytest.raises(BadInput, match="submit again"):
        raw_value(state, kind)
