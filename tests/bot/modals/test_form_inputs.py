"""Long texts, lists, times, and empty values are returned unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.bot.modals import edit
from keyturn.bot.modals.form import build_form, read_form
from keyturn.bot.modals.form_fields import NULL, UNSET, field_inputs, joined, parts_of
from keyturn.bot.modals.schema import is_plain, slack_length
from keyturn.gateway.approvals.record import Item
from keyturn.sandbox.blockkit import validate_modal
from keyturn.sandbox.blockkit.limits import TYPED
from tests.bot.samples import an_approval, an_item, frame
from tests.bot.slack_state import State, chosen, refused, typed, untouched

PARAGRAPH = "We are sorry that your order came late. " * 12
TEXT: Any = {"type": "string"}
LETTER = f"Dear Ana,\n\n{(PARAGRAPH.strip() + chr(10)) * 18}\nYours"


def call(value: Any, schema: Any, *, required: bool = True) -> Item:
    """Return a call whose argument ``x`` has this value and schema."""
    whole = {"properties": {"x": schema}, "required": ["x"] if required else []}
    return an_item({} if value is ... else {"x": value}, args_schema=whole)


def opened(item: Item) -> State:
    """Return the state of the form as Slack sends it untouched."""
    view = edit.view(frame(an_approval(item)), 0)
    assert validate_modal(view) == []
    return untouched(view["blocks"])


def edited(item: Item, state: State) -> Any:
    """Return the arguments of a submitted form."""
    return read_form(item, state).args


def test_a_long_text_has_an_input_for_each_part_and_comes_back_whole() -> None:
    item = call(LETTER, {"type": "string"})

    state = opened(item)

    fields = [name for name in state if name.startswith("field:")]
    assert len(fields) == len(parts_of(LETTER)) == 5
    assert not read_form(item, state).changed
    assert "x (2 of 5)" in str(build_form(item).blocks)


def test_the_title_and_the_unit_of_an_argument_stand_under_its_input() -> None:
    schema = {
        "type": "number",
        "title": "Refund",
        "x-unit": "EUR",
        "description": "Net",
    }
    listed = call(9.5, schema).with_(has_policy_schema=True)
    (field,) = build_form(listed).fields

    (block,) = field_inputs(field)

    hint: Any = block["hint"]
    assert hint["text"] == "Refund, EUR. Net"


def test_one_part_is_changed_and_the_others_stay() -> None:
    item = call(LETTER, {"type": "string"})
    first, second, *rest = parts_of(LETTER)

    args = edited(item, typed(opened(item), "field:0.1", "Short."))

    whole = first.text + second.before + "Short."
    assert args["x"] == whole + "".join(part.before + part.text for part in rest)


def test_an_emptied_part_leaves_no_gap_and_an_emptied_text_is_refused() -> None:
    item = call("a " * 2_000 + "end", {"type": "string"})
    state = opened(item)

    assert edited(item, typed(state, "field:0", None))["x"].startswith("a a")
    for name in [name for name in state if name.startswith("field:")]:
        state = typed(state, name, None)
    assert refused(read_form, item, state) == {"field:0": "A value is needed here."}


def test_parts_that_came_back_with_other_line_ends_stay_as_they_were() -> None:
    item = call(LETTER, {"type": "string"})
    state = opened(item)
    for name in [name for name in state if name.startswith("field:")]:
        text = str(state[name]["value"]["value"])
        state = typed(state, name, text.replace("\n", "\r\n"))

    args = edited(item, typed(state, "field:0.4", "Yours"))

    assert not read_form(item, state).changed
    assert args["x"].startswith(LETTER[:6_000])
    assert "\r" not in args["x"]


@given(
    st.lists(st.sampled_from(["word", "\n", " ", "\n\n", "é", "😀" * 900]), min_size=99)
)
def test_the_parts_of_a_text_give_it_back(pieces: list[str]) -> None:
    text = ("".join(pieces) + "x " * 1_500).strip()
    parts = parts_of(text)

    if not parts:
        assert not is_plain(text)
        return
    assert joined(parts, [part.text for part in parts]) == text
    assert "".join(map("".join, parts)) == text
    assert all(slack_length(part.text) <= TYPED for part in parts)


def test_a_list_of_texts_is_edited_line_by_line() -> None:
    item = call(["ana@example.com", "bob@example.com"], _list_of_texts())

    args = edited(item, typed(opened(item), "field:0", " bob@example.com \n\neve@x.io"))

    assert args == {"x": ["bob@example.com", "eve@x.io"]}


@pytest.mark.parametrize(
    ("schema", "required", "emptied"),
    [
        ({}, True, {"x": []}),
        ({}, False, {}),
        ({"type": ["array", "null"]}, True, {"x": None}),
    ],
)
def test_an_emptied_list_is_what_its_schema_has_for_it(
    schema: Any, *, required: bool, emptied: Any
) -> None:
    item = call(["a"], _list_of_texts() | schema, required=required)

    assert edited(item, typed(opened(item), "field:0", None)) == emptied


@pytest.mark.parametrize(
    ("format", "before", "picked", "after"),
    [
        ("time", "14:30:00", "09:05", "09:05:00"),
        ("time", "14:30", "09:05", "09:05"),
        ("time", "14:30:00.000+01:00", "09:05", "09:05:00.000+01:00"),
        ("time", ..., "09:05", "09:05:00"),
        ("date-time", "2026-11-30T14:30:00Z", 1_796_052_600, "2026-11-30T15:30:00Z"),
        (
            "date-time",
            "2026-11-30T15:30:00+01:00",
            1_796_052_600,
            "2026-11-30T16:30:00+01:00",
        ),
        ("date-time", ..., 1_796_052_600, "2026-11-30T15:30:00Z"),
    ],
)
def test_a_picked_time_is_written_like_the_one_before(
    format: str,  # noqa: A002 - as in the schema
    before: Any,
    picked: Any,
    after: str,
) -> None:
    item = call(before, {"type": "string", "format": format}, required=False)

    assert edited(item, typed(opened(item), "field:0", picked)) == {"x": after}


@pytest.mark.parametrize("junk", [True, "1796052600", 1.5])
def test_a_moment_of_another_shape_is_refused(junk: Any) -> None:
    item = call("2026-11-30T14:30:00Z", {"type": "string", "format": "date-time"})

    errors = refused(read_form, item, typed(opened(item), "field:0", junk))

    assert [*errors] == ["field:0"]


NULLABLE: Any = {"enum": ["a", "b", None]}


@pytest.mark.parametrize(
    ("value", "choice", "args"),
    [
        ("a", NULL, {"x": None}),
        ("a", UNSET, {}),
        (None, UNSET, {}),
        (..., NULL, {"x": None}),
        (None, None, {"x": None}),
        (..., None, {}),
    ],
)
@pytest.mark.parametrize("schema", [NULLABLE, {"type": ["boolean", "null"]}])
def test_a_menu_keeps_null_apart_from_nothing(
    schema: Any, value: Any, choice: str | None, args: Any
) -> None:
    if value == "a" and "enum" not in schema:
        value = True
    item = call(value, schema, required=False)
    state = opened(item)

    found = edited(item, chosen(state, "field:0", choice) if choice else state)

    assert found == args


def test_a_text_may_read_as_one_of_our_choices() -> None:
    item = call("a", {"type": "string"}, required=False)

    assert edited(item, typed(opened(item), "field:0", UNSET)) == {"x": UNSET}


def _list_of_texts() -> Any:
    return {"type": "array", "items": {"type": "string"}}
