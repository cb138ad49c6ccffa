"""Check the rules between the fields of an element, and between blocks and children."""

from typing import Any

import pytest

from keyturn.sandbox.blockkit import Problem, validate_message


def plain(text: str = "words") -> dict[str, Any]:
    return {"type": "plain_text", "text": text}


def option(value: str = "a") -> dict[str, Any]:
    return {"text": plain(), "value": value}


def section(**more: Any) -> dict[str, Any]:
    return {"type": "section", "text": plain(), **more}


def field(kind: str, **more: Any) -> dict[str, Any]:
    """Make an input block of one element."""
    return {"type": "input", "label": plain(), "element": {"type": kind, **more}}


def row(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "actions", "elements": [*elements]}


def button(**more: Any) -> dict[str, Any]:
    return {"type": "button", "text": plain(), **more}


def rich(kind: str, *elements: dict[str, Any], **more: Any) -> dict[str, Any]:
    part = {"type": f"rich_text_{kind}", "elements": [*elements], **more}
    return {"type": "rich_text", "elements": [part]}


def numbers(**more: Any) -> dict[str, Any]:
    return field("number_input", **{"is_decimal_allowed": False, **more})


def selecting(kind: str, **more: Any) -> dict[str, Any]:
    return field(kind, options=[option("a"), option("b")], **more)


def grouped(kind: str, *values: str, **more: Any) -> dict[str, Any]:
    """Make a select with each option in its own group."""
    groups = [{"label": plain(), "options": [option(value)]} for value in values]
    return field(kind, option_groups=groups, **more)


def check(block: Any) -> list[Problem]:
    return validate_message([block], "text")


RUN = {"type": "text", "text": "x"}
USER = {"type": "user", "user_id": "U1"}
IMAGE = {"type": "image", "alt_text": "x", "image_url": "https://e.com/i"}
LINE = {"type": "rich_text_section", "elements": [RUN]}
CELL = {"type": "raw_text", "text": "x"}
MENU = {"type": "overflow", "options": [option("a"), option("a")]}

# A refused payload, the place below the block, and a part of the reason.
REFUSED: list[tuple[Any, str, str]] = [
    ({"type": "section"}, "", "at least one of text, fields"),
    (IMAGE | {"slack_file": {"id": "F1"}}, "", "has image_url and slack_file"),
    ({"type": "image", "alt_text": "x"}, "", "has none"),
    (rich("quote", RUN, border=2), "/elements/0/border", "at most 1, is 2"),
    (
        rich("section", USER | {"user_id": "ana"}),
        "/elements/0/elements/0/user_id",
        "a user id",
    ),
    (
        rich("section", {"type": "channel", "channel_id": "#ops"}),
        "/elements/0/elements/0/channel_id",
        "a channel id",
    ),
    (rich("list", LINE, style="roman"), "/elements/0/style", "one of bullet, ordered"),
    (
        rich("list", RUN, style="bullet"),
        "/elements/0/elements/0/type",
        "'text' is not a list item",
    ),
    (field("users_select", initial_user="@ana"), "/element/initial_user", "a user id"),
    (
        field("static_select"),
        "/element",
        "exactly one of options, option_groups; has none",
    ),
    (
        selecting("radio_buttons", initial_option=option("a") | {"text": plain("y")}),
        "/element/initial_option",
        "not among the options",
    ),
    (row(MENU), "/elements/0", "two options with the same value"),
    (grouped("static_select", "a", "a"), "/element", "two options with the same value"),
    (
        field("multi_users_select", initial_users=["U1", "U2"], max_selected_items=1),
        "/element/initial_users",
        "has 2 items, max_selected_items is 1",
    ),
    (
        field("plain_text_input", min_length=5, max_length=4),
        "/element/min_length",
        "min_length 5 is above max_length 4",
    ),
    (
        field("plain_text_input", initial_value="abc", max_length=2),
        "/element/initial_value",
        "has 3 characters, max_length is 2",
    ),
    (
        numbers(min_value="10", max_value="9"),
        "/element/min_value",
        "min_value 10 is above max_value 9",
    ),
    (
        numbers(initial_value="1", min_value="2"),
        "/element/initial_value",
        "below min_value",
    ),
    (
        numbers(initial_value="1.0"),
        "/element/initial_value",
        "must be whole, is_decimal_allowed is false",
    ),
    (numbers(initial_value="1e3"), "/element/initial_value", "a decimal number"),
    (numbers(initial_value="٣"), "/element/initial_value", "a decimal number"),
    (field("number_input"), "/element/is_decimal_allowed", "required and missing"),
    (
        field("datepicker", initial_date="2026-02-29"),
        "/element/initial_date",
        "a day of the calendar",
    ),
    (
        field("timepicker", initial_time="24:00"),
        "/element/initial_time",
        "a time as HH:mm",
    ),
    (
        field("datetimepicker", initial_date_time=10_000_000_000),
        "/element/initial_date_time",
        "at most 9999999999",
    ),
    (
        row(button(action_id="a"), button(action_id="b"), button(action_id="a")),
        "/elements/2/action_id",
        "'a' is already used in this block",
    ),
    (row(button(style="default")), "/elements/0/style", "one of primary, danger"),
    ({"type": "header", "text": plain(), "level": 5}, "/level", "at most 4, is 5"),
    ({"type": "header", "text": plain(), "level": True}, "/level", "not a boolean"),
    (
        {"type": "table", "rows": [[CELL, button()]]},
        "/rows/0/1/type",
        "'button' is not a table cell",
    ),
    (
        row({"type": "plain_text_input"}),
        "/elements/0/type",
        "belongs into an input block",
    ),
    (field("button", text=plain()), "/element/type", "is not an input"),
    (row(IMAGE), "/elements/0/type", "an image belongs into context or section"),
    (
        section(accessory={"type": "datetimepicker"}),
        "/accessory/type",
        "datetimepicker belongs into actions or input",
    ),
    (
        {"type": "context", "elements": [button()]},
        "/elements/0/type",
        "'button' is not a context element",
    ),
    (field("external_select"), "/element/type", "is not an input we know"),
    (section(text=plain("\ud800")), "/text/text", "lone surrogate"),
]


@pytest.mark.parametrize(("block", "pointer", "why"), REFUSED)
def test_a_rule_refuses_a_payload(block: Any, pointer: str, why: str) -> None:
    (found,) = check(block)

    assert found.pointer == f"/blocks/0{pointer}"
    assert found.code == "invalid_blocks"
    assert why in found.message


# Payloads on the allowed side of the limits above.
ACCEPTED: list[Any] = [
    rich("list", LINE, style="bullet"),
    field("multi_users_select", initial_users=["U1"], max_selected_items=1),
    field("plain_text_input", min_length=4, max_length=4, initial_value="abcd"),
    numbers(initial_value="-2", min_value="-2", max_value="-2"),
    field("datepicker", initial_date="2028-02-29"),
    field("timepicker", initial_time="00:00"),
    field("datetimepicker", initial_date_time=9_999_999_999),
    row(button(action_id="a"), button(action_id="b"), button()),
    {"type": "header", "text": plain(), "level": 4},
    section(text=plain("\U00010000")),
]


@pytest.mark.parametrize("block", ACCEPTED)
def test_a_payload_at_a_limit_is_accepted(block: Any) -> None:
    assert check(block) == []


def test_a_problem_never_repeats_text_that_may_be_an_argument() -> None:
    secret = "4111 1111 1111 1111"

    found = [
        problem
        for block in (
            numbers(initial_value=secret),
            field("datepicker", initial_date=secret[:10]),
            field("plain_text_input", initial_value=secret, max_length=3),
            section(text=plain(secret * 200)),
            selecting("static_select", initial_option=option(secret)),
            {"type": secret * 1000},
        )
        for problem in check(block)
    ]

    assert len(found) == 6
    assert not [each for each in found[:5] if "4111" in str(each)]
    assert len(found[5].message) < 400
