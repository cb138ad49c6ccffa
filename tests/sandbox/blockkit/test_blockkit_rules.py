"""Check the rules between the fields of an element, and between blocks and children."""

import json
from typing import Any

import pytest

from keyturn.sandbox.blockkit import Problem, validate_message


def plain(text: str = "words") -> dict[str, Any]:
    return {"type": "plain_text", "text": text}


def mrkdwn(text: str = "words") -> dict[str, Any]:
    return {"type": "mrkdwn", "text": text}


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


def rich(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "rich_text", "elements": [*elements]}


def numbers(**more: Any) -> dict[str, Any]:
    return field("number_input", **{"is_decimal_allowed": False, **more})


def selecting(kind: str, **more: Any) -> dict[str, Any]:
    return field(kind, options=[option("a"), option("b")], **more)


def check(block: Any) -> list[Problem]:
    return validate_message([block], "text")


RUN = {"type": "text", "text": "x"}
LINE = {"type": "rich_text_section", "elements": [RUN]}
LISTED = {"type": "rich_text_list", "style": "bullet", "elements": [LINE]}
QUESTION = {"title": plain(), "text": mrkdwn(), "confirm": plain(), "deny": plain()}
IMAGE = {"type": "image", "alt_text": "x", "image_url": "https://e.com/i"}
CELL = {"type": "raw_text", "text": "x"}

# The refused payload, the place below the block, the reason, and an accepted neighbour.
RULES: dict[str, tuple[Any, str, str, Any]] = {
    "a section says something": (
        {"type": "section"},
        "",
        "at least one of text, fields",
        {"type": "section", "fields": [plain()]},
    ),
    "an image has one source": (
        IMAGE | {"slack_file": {"id": "F1"}},
        "",
        "exactly one of image_url, slack_file; has image_url and slack_file",
        IMAGE,
    ),
    "an image has a source": (
        {"type": "image", "alt_text": "x"},
        "",
        "has none",
        IMAGE,
    ),
    "a file of Slack has one name": (
        {"type": "image", "alt_text": "x", "slack_file": {}},
        "/slack_file",
        "exactly one of id, url; has none",
        {"type": "image", "alt_text": "x", "slack_file": {"id": "F1"}},
    ),
    "a border is there or not": (
        rich({"type": "rich_text_quote", "elements": [RUN], "border": 2}),
        "/elements/0/border",
        "at most 1, is 2",
        rich({"type": "rich_text_quote", "elements": [RUN], "border": 1}),
    ),
    "a person is named by id": (
        rich(LINE | {"elements": [{"type": "user", "user_id": "ana"}]}),
        "/elements/0/elements/0/user_id",
        "a user id",
        rich(LINE | {"elements": [{"type": "user", "user_id": "W1"}]}),
    ),
    "a group is named by id": (
        rich(LINE | {"elements": [{"type": "usergroup", "usergroup_id": "U1"}]}),
        "/elements/0/elements/0/usergroup_id",
        "a user group id",
        rich(LINE | {"elements": [{"type": "usergroup", "usergroup_id": "S1"}]}),
    ),
    "a channel is named by id": (
        rich(LINE | {"elements": [{"type": "channel", "channel_id": "#ops"}]}),
        "/elements/0/elements/0/channel_id",
        "a channel id",
        rich(LINE | {"elements": [{"type": "channel", "channel_id": "C1"}]}),
    ),
    "a prefilled person is named by id": (
        field("users_select", initial_user="@ana"),
        "/element/initial_user",
        "a user id",
        field("users_select", initial_user="U1"),
    ),
    "a select has options or groups": (
        field("static_select"),
        "/element",
        "exactly one of options, option_groups; has none",
        selecting("static_select"),
    ),
    "a select has not both": (
        selecting(
            "multi_static_select",
            option_groups=[{"label": plain(), "options": [option("c")]}],
        ),
        "/element",
        "has options and option_groups",
        field(
            "multi_static_select",
            option_groups=[{"label": plain(), "options": [option()]}],
        ),
    ),
    "a chosen option is offered": (
        selecting("static_select", initial_option=option("c")),
        "/element/initial_option",
        "not among the options",
        selecting("static_select", initial_option=option("b")),
    ),
    "a chosen option is the same in each field": (
        selecting("radio_buttons", initial_option=option("a") | {"text": plain("y")}),
        "/element/initial_option",
        "not among the options",
        selecting("radio_buttons", initial_option=option("a")),
    ),
    "each chosen option is offered": (
        selecting("checkboxes", initial_options=[option("a"), option("c")]),
        "/element/initial_options/1",
        "not among the options",
        selecting("checkboxes", initial_options=[option("a"), option("b")]),
    ),
    "values tell options apart": (
        row({"type": "overflow", "options": [option("a"), option("a")]}),
        "/elements/0",
        "two options with the same value",
        row({"type": "overflow", "options": [option("a"), option("b")]}),
    ),
    "values tell options of groups apart": (
        field(
            "static_select",
            option_groups=[
                {"label": plain(), "options": [option("a")]},
                {"label": plain(), "options": [option("a")]},
            ],
        ),
        "/element",
        "two options with the same value",
        field(
            "static_select",
            option_groups=[
                {"label": plain(), "options": [option("a")]},
                {"label": plain(), "options": [option("b")]},
            ],
        ),
    ),
    "no more is chosen than may be": (
        selecting(
            "multi_static_select",
            initial_options=[option("a"), option("b")],
            max_selected_items=1,
        ),
        "/element/initial_options",
        "has 2 items, max_selected_items is 1",
        selecting(
            "multi_static_select", initial_options=[option("a")], max_selected_items=1
        ),
    ),
    "no more users are chosen than may be": (
        field("multi_users_select", initial_users=["U1", "U2"], max_selected_items=1),
        "/element/initial_users",
        "has 2 items, max_selected_items is 1",
        field("multi_users_select", initial_users=["U1", "U2"]),
    ),
    "something may be chosen": (
        field("multi_users_select", max_selected_items=0),
        "/element/max_selected_items",
        "at least 1, is 0",
        field("multi_users_select", max_selected_items=1),
    ),
    "lengths are in order": (
        field("plain_text_input", min_length=5, max_length=4),
        "/element/min_length",
        "min_length 5 is above max_length 4",
        field("plain_text_input", min_length=4, max_length=4),
    ),
    "lengths stay in bounds": (
        field("plain_text_input", max_length=3001),
        "/element/max_length",
        "at most 3000, is 3001",
        field("plain_text_input", max_length=3000),
    ),
    "a prefilled text fits": (
        field("plain_text_input", initial_value="abc", max_length=2),
        "/element/initial_value",
        "has 3 characters, max_length is 2",
        field("plain_text_input", initial_value="ab", max_length=2),
    ),
    "numbers are in order": (
        numbers(min_value="10", max_value="9"),
        "/element/min_value",
        "min_value 10 is above max_value 9",
        numbers(min_value="9", max_value="10"),
    ),
    "a prefilled number is not too small": (
        numbers(initial_value="1", min_value="2"),
        "/element/initial_value",
        "below min_value",
        numbers(initial_value="2", min_value="2"),
    ),
    "a prefilled number is not too large": (
        numbers(initial_value="3", max_value="2"),
        "/element/initial_value",
        "above max_value",
        numbers(initial_value="2", max_value="2"),
    ),
    "a whole number has no decimals": (
        numbers(initial_value="1.0"),
        "/element/initial_value",
        "must be whole, is_decimal_allowed is false",
        numbers(initial_value="1.0", is_decimal_allowed=True),
    ),
    "a number is a number": (
        numbers(initial_value="1e3"),
        "/element/initial_value",
        "a decimal number in a string",
        numbers(initial_value="1000"),
    ),
    "a number is in ASCII digits": (
        numbers(initial_value="٣"),
        "/element/initial_value",
        "a decimal number in a string",
        numbers(initial_value="-3"),
    ),
    "a number input says whether decimals are allowed": (
        field("number_input"),
        "/element/is_decimal_allowed",
        "required and missing",
        numbers(),
    ),
    "a date is a date": (
        field("datepicker", initial_date="26-02-01"),
        "/element/initial_date",
        "a date as YYYY-MM-DD",
        field("datepicker", initial_date="2026-02-01"),
    ),
    "a date is in the calendar": (
        field("datepicker", initial_date="2026-02-29"),
        "/element/initial_date",
        "a day of the calendar",
        field("datepicker", initial_date="2028-02-29"),
    ),
    "a time is a time": (
        field("timepicker", initial_time="24:00"),
        "/element/initial_time",
        "a time as HH:mm",
        field("timepicker", initial_time="00:00"),
    ),
    "a moment has ten digits": (
        field("datetimepicker", initial_date_time=999_999_999),
        "/element/initial_date_time",
        "at least 1000000000",
        field("datetimepicker", initial_date_time=1_000_000_000),
    ),
    "a moment has not eleven digits": (
        field("datetimepicker", initial_date_time=10_000_000_000),
        "/element/initial_date_time",
        "at most 9999999999",
        field("datetimepicker", initial_date_time=9_999_999_999),
    ),
    "a colour is a colour": (
        rich(LINE | {"elements": [{"type": "color", "value": "red"}]}),
        "/elements/0/elements/0/value",
        "a colour as #rrggbb",
        rich(LINE | {"elements": [{"type": "color", "value": "#ff0000"}]}),
    ),
    "action ids of a block differ": (
        row(button(action_id="a"), button(action_id="b"), button(action_id="a")),
        "/elements/2/action_id",
        "'a' is already used in this block",
        row(button(action_id="a"), button(action_id="b"), button()),
    ),
    "a button is primary or danger": (
        row(button(style="default")),
        "/elements/0/style",
        "one of primary, danger, not 'default'",
        row(button(style="danger")),
    ),
    "a header has level 1 to 4": (
        {"type": "header", "text": plain(), "level": 5},
        "/level",
        "at most 4, is 5",
        {"type": "header", "text": plain(), "level": 4},
    ),
    "true is no level": (
        {"type": "header", "text": plain(), "level": True},
        "/level",
        "must be an integer, not a boolean",
        {"type": "header", "text": plain(), "level": 1},
    ),
    "a list is bulleted or ordered": (
        rich(LISTED | {"style": "roman"}),
        "/elements/0/style",
        "one of bullet, ordered",
        rich(LISTED),
    ),
    "a list holds sections": (
        rich(LISTED | {"elements": [LISTED]}),
        "/elements/0/elements/0/type",
        "'rich_text_list' is not a list item",
        rich(LISTED | {"elements": [LINE, LINE]}),
    ),
    "preformatted text mentions no one": (
        rich(
            {
                "type": "rich_text_preformatted",
                "elements": [{"type": "user", "user_id": "U1"}],
            }
        ),
        "/elements/0/elements/0/type",
        "'user' is not a preformatted part",
        rich({"type": "rich_text_preformatted", "elements": [RUN]}),
    ),
    "a table cell holds no button": (
        {"type": "table", "rows": [[CELL, button()]]},
        "/rows/0/1/type",
        "'button' is not a table cell",
        {"type": "table", "rows": [[CELL, rich(LINE)]]},
    ),
    "a typed input is an input": (
        row({"type": "plain_text_input"}),
        "/elements/0/type",
        "belongs into an input block",
        field("plain_text_input"),
    ),
    "a button is no input": (
        field("button", text=plain()),
        "/element/type",
        "is not an input",
        row(button()),
    ),
    "an image is no action": (
        row(IMAGE),
        "/elements/0/type",
        "an image belongs into context or section",
        {"type": "context", "elements": [IMAGE]},
    ),
    "a section holds no datetimepicker": (
        section(accessory={"type": "datetimepicker"}),
        "/accessory/type",
        "datetimepicker belongs into actions or input",
        row({"type": "datetimepicker"}),
    ),
    "a context holds no button": (
        {"type": "context", "elements": [button()]},
        "/elements/0/type",
        "'button' is not a context element",
        {"type": "context", "elements": [mrkdwn()]},
    ),
    "an external select is not known": (
        field("external_select"),
        "/element/type",
        "'external_select' is not an input we know",
        selecting("static_select"),
    ),
    "UTF-8 carries every text": (
        section(text=plain("\ud800")),
        "/text/text",
        "lone surrogate",
        section(text=plain("\U00010000")),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_refuses_one_payload_and_accepts_its_neighbour(rule: str) -> None:
    bad, pointer, why, good = RULES[rule]

    found = check(bad)

    assert check(good) == []
    assert [each.pointer for each in found] == [f"/blocks/0{pointer}"]
    assert found[0].code == "invalid_blocks"
    assert why in found[0].message


PLAIN_ONLY = {
    "a header": ({"type": "header", "text": plain()}, "/text"),
    "a button": (row(button()), "/elements/0/text"),
    "a label": (field("plain_text_input"), "/label"),
    "a hint": (field("plain_text_input") | {"hint": plain()}, "/hint"),
    "a placeholder": (
        field("plain_text_input", placeholder=plain()),
        "/element/placeholder",
    ),
    "a select option": (selecting("static_select"), "/element/options/0/text"),
    "an overflow option": (
        row({"type": "overflow", "options": [option()]}),
        "/elements/0/options/0/text",
    ),
    "a group": (
        field(
            "static_select", option_groups=[{"label": plain(), "options": [option()]}]
        ),
        "/element/option_groups/0/label",
    ),
    "the title of a question": (
        row(button(confirm=QUESTION)),
        "/elements/0/confirm/title",
    ),
    "the yes of a question": (
        row(button(confirm=QUESTION)),
        "/elements/0/confirm/confirm",
    ),
    "the no of a question": (row(button(confirm=QUESTION)), "/elements/0/confirm/deny"),
    "the title of an image": (IMAGE | {"title": plain()}, "/title"),
}


@pytest.mark.parametrize("place", PLAIN_ONLY)
def test_markup_is_refused_where_slack_takes_plain_text_only(place: str) -> None:
    block, pointer = PLAIN_ONLY[place]

    found = check(with_markup(block, pointer.split("/")[1:]))

    assert check(block) == []
    assert [each.pointer for each in found] == [f"/blocks/0{pointer}/type"]
    assert found[0].message == "mrkdwn is not allowed here, only plain_text"


def with_markup(block: Any, path: list[str]) -> Any:
    """Copy a block with markup at one place."""
    block = parent = json.loads(json.dumps(block))
    *steps, last = path
    for each in steps:
        parent = parent[int(each) if each.isdigit() else each]
    parent[last] = mrkdwn()
    return block


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
        )
        for problem in check(block)
    ]

    assert len(found) == 5
    assert not [each for each in found if "4111" in str(each)]


def test_a_very_long_type_is_shortened_in_the_message() -> None:
    found = check({"type": "x" * 10_000})

    assert len(found[0].message) < 400
