"""Check whole messages, modals and Home tabs by Slack's rules."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.sandbox.blockkit import (
    JSON,
    Problem,
    validate_home,
    validate_message,
    validate_modal,
)
from tests.sandbox.blockkit.charts import pie_chart


def plain(text: str = "words") -> dict[str, Any]:
    return {"type": "plain_text", "text": text}


def divider(**more: Any) -> dict[str, Any]:
    return {"type": "divider", **more}


def section(text: str = "words", **more: Any) -> dict[str, Any]:
    return {"type": "section", "text": plain(text), **more}


def asking(**more: Any) -> dict[str, Any]:
    element = {"type": "plain_text_input", **more}
    return {"type": "input", "label": plain(), "element": element}


def modal(*blocks: Any, **more: Any) -> dict[str, Any]:
    return {"type": "modal", "title": plain(), "blocks": [*blocks], **more}


def home(*blocks: Any, **more: Any) -> dict[str, Any]:
    return {"type": "home", "blocks": [*blocks], **more}


TABLE: Any = {"type": "table", "rows": [[{"type": "raw_text", "text": "x"}]]}
MARKDOWN: JSON = {"type": "markdown", "text": "x"}
PIE: JSON = pie_chart(("x", 1))
ALERT: JSON = {"type": "alert", "text": plain()}


def brief(problems: list[Problem]) -> list[tuple[str, str]]:
    return [(each.pointer, each.code) for each in problems]


def test_a_message_has_text_or_blocks() -> None:
    assert brief(validate_message(None, None)) == [("", "no_text")]
    assert brief(validate_message([], "")) == [("", "no_text")]
    assert brief(validate_message([], None, update=True)) == [("", "no_text")]
    assert validate_message(None, "words") == []
    assert validate_message([], "words") == []
    assert validate_message([divider()], None) == []


def test_a_message_takes_50_blocks() -> None:
    found = validate_message([divider()] * 51, "words")

    assert validate_message([divider()] * 50, "words") == []
    assert brief(found) == [("/blocks", "invalid_blocks")]
    assert found[0].message == "must have at most 50 items, has 51"


@pytest.mark.parametrize("blocks", ["words", {}, 7, True])
def test_blocks_that_are_no_array_are_refused(blocks: JSON) -> None:
    found = validate_message(blocks, "words")

    assert brief(found) == [("/blocks", "invalid_blocks_format")]


@pytest.mark.parametrize("block", [None, "divider", 7, [], ["divider"]])
def test_a_block_that_is_no_object_is_refused(block: JSON) -> None:
    found = validate_message([divider(), block], "words")

    assert brief(found) == [("/blocks/1", "invalid_blocks")]


def test_text_of_a_post_has_40000_characters() -> None:
    found = validate_message(None, "é" * 40_001)

    assert validate_message(None, "é" * 40_000) == []
    assert brief(found) == [("/text", "msg_too_long")]
    assert "40000 characters, has 40001" in found[0].message


@pytest.mark.parametrize(
    ("character", "weight"),
    [("a", 1), ("é", 2), ("€", 3), ("😀", 4), ("&", 5), ("<", 4), (">", 4)],
)
def test_an_update_has_4000_bytes_of_text(character: str, weight: int) -> None:
    fits = character * (4_000 // weight) + "a" * (4_000 % weight)

    found = validate_message(None, fits + "a", update=True)

    assert validate_message(None, fits, update=True) == []
    assert brief(found) == [("/text", "msg_too_long")]
    assert "4000 bytes after escaping in an update, has 4001" in found[0].message


@pytest.mark.parametrize("text", [7, ["words"], "\udc00"])
def test_text_that_is_no_text_is_refused(text: JSON) -> None:
    assert brief(validate_message([divider()], text)) == [
        ("/text", "invalid_arguments")
    ]


def test_a_message_takes_as_much_text_as_slack_was_seen_to_take() -> None:
    full = [section("x" * 2_835)] * 4

    found = validate_message([*full, section("y")], "words")

    assert validate_message([*full, divider()], "words") == []
    assert brief(found) == [("/blocks", "msg_blocks_too_long")]
    assert "11340 characters, has 11341" in found[0].message


def test_the_limit_counts_text_wherever_it_stands() -> None:
    nested: Any = {
        "type": "table",
        "rows": [[{"type": "raw_text", "text": "x" * 129}] * 20] * 4,
    }
    link = {"type": "link", "url": "https://e.com/" + "x" * 1_006}
    rich: Any = {
        "type": "rich_text",
        "elements": [{"type": "rich_text_section", "elements": [link]}],
    }

    found = validate_message([nested, rich, section(".")], "words")

    assert validate_message([nested, rich], "words") == []
    assert brief(found) == [("/blocks", "msg_blocks_too_long")]


def test_markdown_blocks_share_12000_characters() -> None:
    found = validate_message([{"type": "markdown", "text": "x" * 6_001}] * 2, "words")

    assert "12000 characters, has 12002" in found[0].message
    assert {each.code for each in found} == {"msg_blocks_too_long"}


def test_a_message_takes_one_table() -> None:
    found = validate_message([TABLE, divider(), TABLE], "words")

    assert validate_message([TABLE], "words") == []
    assert brief(found) == [("/blocks/2", "invalid_blocks")]


def test_a_message_takes_two_charts() -> None:
    found = validate_message([PIE, PIE, TABLE, PIE], "words")

    assert validate_message([PIE, TABLE, PIE], "words") == []
    assert brief(found) == [("/blocks/3", "invalid_blocks")]
    assert "one chart too many: a message takes 2, this one has 3" in found[0].message


Evaluate = Callable[..., list[Problem]]


def in_message(*blocks: JSON) -> list[Problem]:
    return validate_message([*blocks], "words")


def in_modal(*blocks: JSON) -> list[Problem]:
    return validate_modal(modal(*blocks, submit=plain()))


def in_home(*blocks: JSON) -> list[Problem]:
    return validate_home(home(*blocks))


SURFACES: dict[str, Evaluate] = {
    "message": in_message,
    "modal": in_modal,
    "home": in_home,
}


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize(
    ("block", "homes"),
    [
        (TABLE, {"message"}),
        (MARKDOWN, {"message"}),
        (ALERT, {"modal"}),
        (PIE, {"message"}),
        (divider(), {"message", "modal", "home"}),
        (asking(), {"message", "modal", "home"}),
    ],
)
def test_a_block_is_refused_on_a_surface_that_does_not_take_it(
    block: dict[str, Any], homes: set[str], surface: str
) -> None:
    found = SURFACES[surface](block)

    assert [each.pointer for each in found] == (
        [] if surface in homes else ["/blocks/0/type"]
    )


@pytest.mark.parametrize("surface", SURFACES)
def test_a_block_id_is_used_once(surface: str) -> None:
    found = SURFACES[surface](divider(block_id="a"), divider(block_id="a"))

    assert SURFACES[surface](divider(block_id="a"), divider(block_id="b")) == []
    assert [each.pointer for each in found] == ["/blocks/1/block_id"]


@pytest.mark.parametrize("surface", SURFACES)
def test_one_element_takes_the_focus(surface: str) -> None:
    picker = {"type": "datepicker", "focus_on_load": True}
    row = {"type": "actions", "elements": [{"type": "datepicker"}, picker]}

    found = SURFACES[surface](
        asking(focus_on_load=True), row, section(accessory=picker)
    )

    assert SURFACES[surface](asking(focus_on_load=True), asking()) == []
    assert [each.pointer for each in found] == [
        "/blocks/1/elements/1/focus_on_load",
        "/blocks/2/accessory/focus_on_load",
    ]


@pytest.mark.parametrize("surface", ["modal", "home"])
def test_a_view_takes_100_blocks(surface: str) -> None:
    found = SURFACES[surface](*[divider()] * 101)

    assert SURFACES[surface](*[divider()] * 100) == []
    assert brief(found) == [("/blocks", "invalid_arguments")]


@pytest.mark.parametrize("surface", ["modal", "home"])
def test_a_view_has_a_block(surface: str) -> None:
    assert brief(SURFACES[surface]()) == [("/blocks", "invalid_arguments")]


def test_a_modal_may_have_every_field() -> None:
    assert (
        validate_modal(
            modal(
                asking(),
                submit=plain("x" * 24),
                close=plain("x" * 24),
                title=plain("x" * 24),
                private_metadata="x" * 3_000,
                callback_id="x" * 255,
                external_id="x" * 255,
                clear_on_close=True,
                notify_on_close=False,
                submit_disabled=False,
            )
        )
        == []
    )


@pytest.mark.parametrize(
    ("key", "value", "pointer"),
    [
        ("title", plain("x" * 25), "/title/text"),
        ("title", {"type": "mrkdwn", "text": "x"}, "/title/type"),
        ("private_metadata", "x" * 3_001, "/private_metadata"),
        ("callback_id", "x" * 256, "/callback_id"),
        ("external_id", "x" * 256, "/external_id"),
        ("notify_on_close", "yes", "/notify_on_close"),
        ("blocks", {}, "/blocks"),
        ("type", "home", "/type"),
        ("type", "workflow_step", "/type"),
        ("hash", "1.2", "/hash"),
        ("a/b~c", 1, "/a~1b~0c"),
    ],
)
def test_a_wrong_field_refuses_a_modal(key: str, value: Any, pointer: str) -> None:
    found = validate_modal(modal(divider()) | {key: value})

    assert brief(found) == [(pointer, "invalid_arguments")]


def test_a_modal_with_an_input_has_a_submit_button() -> None:
    found = validate_modal(modal(divider(), asking()))

    assert validate_modal(modal(divider())) == []
    assert validate_modal(modal(asking(), submit=plain())) == []
    assert brief(found) == [("/submit", "invalid_arguments")]


@pytest.mark.parametrize("key", ["title", "submit", "close"])
def test_a_home_tab_has_no_buttons_of_a_modal(key: str) -> None:
    found = validate_home(home(divider()) | {key: plain()})

    assert validate_home(home(divider(), private_metadata="", callback_id="x")) == []
    assert brief(found) == [(f"/{key}", "invalid_arguments")]


@pytest.mark.parametrize("view", [None, [], "modal", {}])
def test_a_view_that_is_no_view_is_refused(view: JSON) -> None:
    assert validate_modal(view)
    assert validate_home(view)


def test_a_view_has_250_kb_of_json() -> None:
    blocks = [section("é" * 2_000) for _ in range(60)]
    compact = json.dumps(modal(*blocks), ensure_ascii=False, separators=(",", ":"))
    spare = 250_000 - len(compact.encode()) - len(',"private_metadata":""')
    wide = [section("é" * 2_000 + "x" * (spare // 60)) for _ in range(60)]

    fits = modal(*wide, private_metadata="x" * (spare % 60))
    found = validate_modal(modal(*wide, private_metadata="x" * (spare % 60 + 1)))

    assert validate_modal(fits) == []
    assert brief(found) == [("", "view_too_large")]
    assert "250000 bytes as JSON, has 250001" in found[0].message


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["section", "actions", "plain_text", "table", "modal", "input"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "text", "elements", "rows", "blocks", "element"]),
            inner,
        )
    ),
    max_leaves=20,
)


@settings(deadline=None)  # the machine may be busy
@given(json_values)
def test_whatever_arrives_is_evaluated_and_never_crashes(value: JSON) -> None:
    for problems in (
        validate_message(value, "words"),
        validate_message([value], value, update=True),
        validate_modal(value),
        validate_home(value),
    ):
        assert all(each.pointer == "" or each.pointer[0] == "/" for each in problems)


@pytest.mark.slow
def test_nesting_far_deeper_than_block_kit_is_refused_without_a_crash() -> None:
    deep: JSON = {"type": "section"}
    for _ in range(100_000):
        deep = {"type": "section", "text": [deep]}

    assert validate_message([deep], "words")
    assert validate_modal(modal(deep))
