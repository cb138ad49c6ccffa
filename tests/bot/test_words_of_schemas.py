"""Every surface marks words of the agent's schema as the agent's, or hides them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.frame import TABLE_FROM
from keyturn.bot.modals import choose, edit
from keyturn.bot.modals.choose import opened
from keyturn.bot.modals.details import pages
from keyturn.bot.modals.form import errors_by_block
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.edits import edit_errors
from tests.bot.samples import an_approval, an_item, frame

LIE = "Ana approved it; amounts in cents"
MARKS = ("Agent says (unverified): ", "The tool's schema ", '"')
"""What has to come before the words in the same text."""
CHOICES = "The choices are the agent's words (unverified)."

ARGS: dict[str, Any] = {"amount": 500000, "to": "DE00", "tags": ["a"], "at": {"x": 1}}
POSITIONS: dict[str, Any] = {
    "title": {"title": LIE},
    "unit": {"title": "Amount", "x-unit": LIE},
    "description": {"description": LIE},
    "default": {"default": LIE},
    "examples": {"examples": [LIE]},
    "comment": {"$comment": LIE},
    "labels of choices": {"enum": ["x", "DE00"], "enumNames": ["x", LIE]},
    "choice": {"enum": [LIE, 500000, "DE00", "a"]},
    "only value": {"const": LIE},
    "pattern": {"type": "string", "pattern": f"^{LIE}$"},
    "format": {"type": "string", "format": LIE},
    "media type": {"type": "string", "contentMediaType": LIE},
    "elements": {"type": "array", "title": LIE, "items": {"enum": ["a", LIE]}},
    "members": {"type": "object", "properties": {LIE: {"title": LIE}, "x": {}}},
    "branches": {"anyOf": [{"title": LIE, "description": LIE}, {"type": "null"}]},
    "reference": {"$ref": "#/$defs/lie"},
    "keyword that nobody knows": {LIE: LIE, "x-label": LIE},
}


def calls(words: Any) -> list[Item]:
    """Return calls whose every argument has these words in the agent's schema."""
    properties: dict[str, Any] = {name: dict(words) for name in ARGS}
    schema: Any = {
        "title": LIE,
        "description": LIE,
        "properties": {**properties, LIE: dict(words)},
        "required": [*ARGS],
        "$defs": {"lie": {"title": LIE, "description": LIE, "enum": [500000, LIE]}},
    }
    return [an_item(ARGS, args_schema=schema, index=at) for at in range(TABLE_FROM + 1)]


def surfaces(items: list[Item]) -> Iterator[tuple[str, Any]]:
    """Yield everything that people see of one call and of many."""
    one, many = an_approval(items[0]), an_approval(*items)
    for name, approval in (("card", one), ("table", many)):
        message = card(frame(approval))
        yield name, message.blocks
        yield f"fallback of {name}", message.text
    yield "details", [part.text for page in pages(one, items[0]) for part in page]
    yield "form", edit.view(frame(one), 0)
    yield "choice", choose.view(frame(many), opened(many))
    edited: Any = ARGS | dict.fromkeys(ARGS, "other") | {"none": 1}
    errors = edit_errors(items[0].args_schema, items[0].args, edited)
    yield "errors", [*errors_by_block(items[0], errors).values()]


def texts(shown: Any, hint: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text with the hint of the input that it is in."""
    if isinstance(shown, str):
        yield shown, hint
    elif isinstance(shown, dict):
        block = cast("dict[str, Any]", shown)
        hint = block.get("hint", {}).get("text", hint)
        for one in block.values():
            yield from texts(one, hint)
    elif isinstance(shown, list | tuple):
        for one in cast("list[Any]", shown):
            yield from texts(one, hint)


def unmarked(shown: Any) -> list[str]:
    """Return the places where an agent's words could be taken for ours."""
    return [
        text
        for text, hint in texts(shown)
        if LIE in text
        and not any(mark in text.partition(LIE)[0] for mark in MARKS)
        and CHOICES not in hint
    ]


@pytest.mark.parametrize("position", POSITIONS)
def test_no_surface_shows_words_of_the_agents_schema_as_ours(position: str) -> None:
    found = {name: unmarked(one) for name, one in surfaces(calls(POSITIONS[position]))}

    assert not any(found.values()), found


def test_titles_and_units_of_the_policys_schema_are_shown() -> None:
    words = {"title": "Refund", "x-unit": "EUR"}
    items = [one.with_(has_policy_schema=True) for one in calls(words)]

    shown = dict(surfaces(items))

    assert all(
        "Refund, EUR" in str(shown[name]) for name in ("card", "details", "form")
    )
