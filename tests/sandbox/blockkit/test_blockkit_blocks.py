"""Check each block and element by its rules: a payload in, one problem out."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from keyturn.sandbox.blockkit import JSON, Problem, validate_message, validate_modal
from tests.sandbox.blockkit.charts import CHARTS

DROP = object()


def plain(text: str = "words") -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


def mrkdwn(text: str = "*words*") -> dict[str, Any]:
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def option(value: str = "a", **more: Any) -> dict[str, Any]:
    return {"text": plain(), "value": value, "description": plain(), **more}


CONFIRM = {
    "title": plain(),
    "text": mrkdwn(),
    "confirm": plain(),
    "deny": plain(),
    "style": "danger",
}
DISPATCH = {"trigger_actions_on": ["on_enter_pressed", "on_character_entered"]}
TYPED = {"dispatch_action_config": DISPATCH, "placeholder": plain()}
PICKED = {"action_id": "a", "confirm": CONFIRM, "placeholder": plain()}
OPTIONS = [option("a"), option("b")]
GROUPS = [{"label": plain(), "options": OPTIONS}]
RUN = {"type": "text", "text": "words", "style": {"bold": True, "code": False}}
SECTION = {"type": "rich_text_section", "elements": [RUN]}
RICH = {"type": "rich_text", "elements": [SECTION]}

ELEMENTS: dict[str, dict[str, Any]] = {
    "button": {
        "type": "button",
        "action_id": "a",
        "text": plain(),
        "value": "v",
        "url": "https://example.com/x",
        "style": "primary",
        "confirm": CONFIRM,
        "accessibility_label": "words",
        "visible_to_user_ids": ["U1"],
    },
    "overflow": {
        "type": "overflow",
        "action_id": "a",
        "options": [option("a", url="https://example.com"), option("b")],
        "confirm": CONFIRM,
    },
    "checkboxes": {
        "type": "checkboxes",
        "action_id": "a",
        "options": [{"text": mrkdwn(), "value": "a"}, option("b")],
        "initial_options": [option("b")],
        "confirm": CONFIRM,
        "focus_on_load": False,
    },
    "radio_buttons": {
        "type": "radio_buttons",
        "action_id": "a",
        "options": [option("a"), option("b")],
        "initial_option": option("b"),
    },
    "static_select": {
        "type": "static_select",
        **PICKED,
        "options": OPTIONS,
        "initial_option": option("b"),
        "focus_on_load": True,
    },
    "grouped_select": {
        "type": "static_select",
        "option_groups": GROUPS,
        "initial_option": option("a"),
    },
    "multi_static_select": {
        "type": "multi_static_select",
        **PICKED,
        "options": OPTIONS,
        "initial_options": OPTIONS,
        "max_selected_items": 2,
    },
    "users_select": {"type": "users_select", **PICKED, "initial_user": "U1"},
    "multi_users_select": {
        "type": "multi_users_select",
        **PICKED,
        "initial_users": ["U1", "U2"],
        "max_selected_items": 2,
    },
    "datepicker": {"type": "datepicker", **PICKED, "initial_date": "2026-02-28"},
    "timepicker": {
        "type": "timepicker",
        **PICKED,
        "initial_time": "23:59",
        "timezone": "Europe/London",
    },
    "datetimepicker": {
        "type": "datetimepicker",
        "action_id": "a",
        "initial_date_time": 1_800_000_000,
        "confirm": CONFIRM,
    },
    "plain_text_input": {
        "type": "plain_text_input",
        "action_id": "a",
        **TYPED,
        "initial_value": "",
        "multiline": True,
        "min_length": 0,
        "max_length": 3000,
        "focus_on_load": True,
    },
    "number_input": {
        "type": "number_input",
        "action_id": "a",
        **TYPED,
        "is_decimal_allowed": True,
        "initial_value": "1.50",
        "min_value": "-2",
        "max_value": "10",
    },
    "email_text_input": {"type": "email_text_input", **TYPED, "initial_value": "a@b.c"},
    "url_text_input": {
        "type": "url_text_input",
        **TYPED,
        "initial_value": "https://example.com",
    },
}
INPUT_ONLY = {"plain_text_input", "number_input", "email_text_input", "url_text_input"}


def in_input(element: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "input",
        "block_id": "b",
        "label": plain(),
        "element": element,
        "hint": plain(),
        "optional": True,
        "dispatch_action": False,
    }


BLOCKS: dict[str, dict[str, Any]] = {
    "header": {"type": "header", "text": plain(), "block_id": "b", "level": 1},
    "section": {
        "type": "section",
        "text": mrkdwn(),
        "fields": [plain(), mrkdwn()],
        "accessory": {"type": "image", "alt_text": "x", "image_url": "https://e.com/i"},
        "expand": True,
        "block_id": "b",
    },
    "context": {
        "type": "context",
        "elements": [
            plain(),
            mrkdwn(),
            {"type": "image", "alt_text": "x", "slack_file": {"id": "F1"}},
        ],
    },
    "divider": {"type": "divider", "block_id": "b"},
    "image": {
        "type": "image",
        "alt_text": "x",
        "image_url": "https://e.com/i",
        "title": plain(),
    },
    "rich_text": {
        "type": "rich_text",
        "block_id": "b",
        "elements": [
            {
                "type": "rich_text_section",
                "elements": [
                    RUN,
                    {"type": "link", "url": "https://e.com", "text": "e"},
                    {"type": "user", "user_id": "U1"},
                    {"type": "usergroup", "usergroup_id": "S1"},
                    {"type": "channel", "channel_id": "C1"},
                    {
                        "type": "emoji",
                        "name": "key",
                        "unicode": "1f511",
                        "skin_tone": 2,
                    },
                    {"type": "broadcast", "range": "here"},
                    {
                        "type": "date",
                        "timestamp": 1_800_000_000,
                        "format": "{date}",
                        "url": "https://e.com",
                        "fallback": "then",
                    },
                    {"type": "color", "value": "#00ff7F"},
                ],
            },
            {
                "type": "rich_text_preformatted",
                "elements": [RUN, {"type": "link", "url": "https://e.com"}],
                "border": 0,
                "language": "json",
            },
            {"type": "rich_text_quote", "elements": [RUN], "border": 1},
            {
                "type": "rich_text_list",
                "style": "ordered",
                "elements": [SECTION],
                "indent": 1,
                "offset": 0,
                "border": 0,
            },
        ],
    },
    "table": {
        "type": "table",
        "rows": [[{"type": "raw_text", "text": "a"}, RICH], [RICH]],
        "column_settings": [{"align": "right", "is_wrapped": True}, None],
    },
    "alert": {"type": "alert", "text": mrkdwn(), "level": "warning"},
    "markdown": {"type": "markdown", "text": "# words"},
    **CHARTS,
    "actions": {
        "type": "actions",
        "block_id": "b",
        "elements": [
            {**ELEMENTS["button"], "action_id": "a1"},
            {**ELEMENTS["overflow"], "action_id": "a2"},
        ],
    },
}
SAMPLES: dict[str, dict[str, Any]] = {
    **BLOCKS,
    **{
        name: in_input(element)
        for name, element in ELEMENTS.items()
        if name not in {"button", "overflow"}
    },
    **{
        f"{name}_action": {"type": "actions", "elements": [element]}
        for name, element in ELEMENTS.items()
        if name not in INPUT_ONLY
    },
    **{
        f"{name}_accessory": {"type": "section", "text": plain(), "accessory": element}
        for name, element in ELEMENTS.items()
        if name not in INPUT_ONLY | {"datetimepicker"}
    },
}


def check(block: JSON) -> list[Problem]:
    """Evaluate one block where it belongs, its pointers from the block itself."""
    if isinstance(block, dict) and block.get("type") == "alert":
        view: dict[str, Any] = {
            "type": "modal",
            "title": plain(),
            "submit": plain(),
            "blocks": [block],
        }
        problems = validate_modal(view)
    else:
        problems = validate_message([block], "text")
    return [
        Problem(found.pointer.removeprefix("/blocks/0"), found.code, found.message)
        for found in problems
    ]


def steps(pointer: str) -> list[str | int]:
    return [int(each) if each.isdigit() else each for each in pointer.split("/")[1:]]


def fresh(block: Any) -> Any:
    """Copy a block with no part shared, as deepcopy would keep it."""
    return json.loads(json.dumps(block))


def changed(block: Any, pointer: str, value: Any) -> Any:
    """Copy a block with one place replaced, or dropped."""
    block = fresh(block)
    *path, last = steps(pointer)
    parent = block
    for each in path:
        parent = parent[each]
    if value is DROP:
        del parent[last]
    else:
        parent[last] = value
    return block


def places(value: JSON, pointer: str = "") -> Iterator[tuple[str, JSON]]:
    """Yield every place of a payload with its value."""
    yield pointer, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, f"{pointer}/{key}")
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, f"{pointer}/{index}")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_payload_with_every_field_is_accepted(name: str) -> None:
    assert check(SAMPLES[name]) == []


@pytest.mark.parametrize("name", SAMPLES)
def test_an_unknown_key_is_refused_in_every_object(name: str) -> None:
    for pointer, value in places(SAMPLES[name]):
        if isinstance(value, dict):
            found = check(changed(SAMPLES[name], f"{pointer}/surprise", 1))

            assert [each.pointer for each in found] == [f"{pointer}/surprise"]
            assert "unknown key" in found[0].message


@pytest.mark.parametrize("name", SAMPLES)
def test_a_missing_or_unknown_type_is_refused_in_every_object(name: str) -> None:
    for pointer, value in places(SAMPLES[name]):
        if isinstance(value, dict) and "type" in value:
            for wrong in (DROP, "surprise", 7):
                found = check(changed(SAMPLES[name], f"{pointer}/type", wrong))

                assert [each.pointer for each in found] == [f"{pointer}/type"]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_value_of_the_wrong_kind_is_refused_everywhere(name: str) -> None:
    for pointer, value in places(SAMPLES[name]):
        wrong: list[Any] = [{}] if isinstance(value, list) else [[], {"type": "x"}]
        wrong += [{}, None] if not isinstance(value, dict | list) else ["words"]
        for each in wrong:
            if pointer and value is not None:
                found = check(changed(SAMPLES[name], pointer, each))

                assert found, (pointer, each)
                assert found[0].pointer.startswith(pointer)


@pytest.mark.parametrize("name", SAMPLES)
def test_an_empty_text_or_array_is_refused_everywhere(name: str) -> None:
    for pointer, value in places(SAMPLES[name]):
        if isinstance(value, str | list) and value:
            if pointer.endswith(("initial_value", "/type")):
                continue
            found = check(
                changed(SAMPLES[name], pointer, "" if isinstance(value, str) else [])
            )

            assert pointer in [each.pointer for each in found]


# Sample, place, the most characters it may have.
LENGTHS = [
    ("header", "/text/text", 150),
    ("section", "/text/text", 3_000),
    ("section", "/fields/0/text", 2_000),
    ("context", "/elements/0/text", 3_000),
    ("image", "/alt_text", 2_000),
    ("alert", "/text/text", 200),
    ("plain_text_input", "/label/text", 2_000),
    ("plain_text_input", "/element/placeholder/text", 150),
    ("plain_text_input", "/element/initial_value", 3_000),
    ("actions", "/elements/0/action_id", 255),
    ("actions", "/elements/0/text/text", 75),
    ("actions", "/elements/0/value", 2_000),
    ("actions", "/elements/0/confirm/title/text", 100),
    ("actions", "/elements/0/confirm/text/text", 300),
    ("actions", "/elements/0/confirm/confirm/text", 30),
    ("actions", "/elements/1/options/0/text/text", 75),
    ("actions", "/elements/1/options/0/value", 150),
    ("grouped_select", "/element/option_groups/0/label/text", 75),
]


@pytest.mark.parametrize(("name", "pointer", "most"), LENGTHS)
def test_a_text_has_slacks_maximum(name: str, pointer: str, most: int) -> None:
    found = check(changed(SAMPLES[name], pointer, "é" * (most + 1)))

    assert check(changed(SAMPLES[name], pointer, "é" * most)) == []
    assert [each.pointer for each in found] == [pointer]
    assert found[0].message.endswith(f"at most {most} characters, has {most + 1}")


@pytest.mark.parametrize(
    ("name", "pointer"),
    [
        ("image", "/image_url"),
        ("actions", "/elements/0/url"),
        ("actions", "/elements/1/options/0/url"),
        ("rich_text", "/elements/0/elements/1/url"),
    ],
)
def test_an_address_has_3000_characters_at_most(name: str, pointer: str) -> None:
    for accepted in ("https://e.com/" + "x" * 2_986, "HTTPS://e.com"):
        assert check(changed(SAMPLES[name], pointer, accepted)) == []
    for wrong in ("https://e.com/" + "x" * 2_987, "e.com", "https://e.com/a b"):
        found = check(changed(SAMPLES[name], pointer, wrong))

        assert [each.pointer for each in found] == [pointer]


# Sample, place of the array, one item, the most items it may have.
COUNTS: list[tuple[str, str, Any, int]] = [
    ("section", "/fields", plain("x"), 10),
    ("context", "/elements", plain("x"), 10),
    ("actions", "/elements", {"type": "button", "text": plain("x")}, 25),
    ("table", "/rows", [{"type": "raw_text", "text": "x"}], 100),
    ("table", "/rows/0", {"type": "raw_text", "text": "x"}, 20),
    ("table", "/column_settings", None, 20),
    ("overflow_action", "/elements/0/options", option, 5),
    ("checkboxes", "/element/options", option, 10),
    ("static_select", "/element/options", option, 100),
    ("grouped_select", "/element/option_groups/0/options", option, 100),
]


@pytest.mark.parametrize(("name", "pointer", "item", "most"), COUNTS)
def test_an_array_may_be_as_long_as_slack_says_and_no_longer(
    name: str, pointer: str, item: Any, most: int
) -> None:
    base = fresh(SAMPLES[name])
    holder = base.get("element") or base
    holder.pop("initial_option", None)
    holder.pop("initial_options", None)
    items = [item(str(n)) if item is option else item for n in range(most + 1)]

    found = check(changed(base, pointer, items))

    assert check(changed(base, pointer, items[:most])) == []
    assert [each.pointer for each in found] == [pointer]
    assert found[0].message == f"must have at most {most} items, has {most + 1}"


@pytest.mark.parametrize(
    ("name", "pointer"),
    [
        ("header", "/text"),
        ("image", "/title"),
        ("plain_text_input", "/label"),
        ("plain_text_input", "/hint"),
        ("plain_text_input", "/element/placeholder"),
        ("static_select", "/element/options/0/text"),
        ("grouped_select", "/element/option_groups/0/label"),
        ("actions", "/elements/0/text"),
        ("actions", "/elements/0/confirm/title"),
        ("actions", "/elements/0/confirm/confirm"),
        ("actions", "/elements/0/confirm/deny"),
        ("actions", "/elements/1/options/0/text"),
    ],
)
def test_markup_is_refused_in_plain_text(name: str, pointer: str) -> None:
    (found,) = check(changed(SAMPLES[name], pointer, mrkdwn("words")))

    assert found.pointer == f"{pointer}/type"
    assert found.message == "mrkdwn is not allowed here, only plain_text"
