"""Write blocks as text, so that a person can read a snapshot of a card or modal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.bot.markup_audit import assert_whole


def readable(blocks: Any, text: str = "") -> str:
    """Return one line or box for each part, from top to bottom."""
    lines = [f"text: {text}"] if text else []
    for block in blocks:
        lines += _block(block)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def view(modal: Any) -> str:
    """Return a modal as text: title, blocks, buttons at the bottom."""
    submit = modal.get("submit", {}).get("text", "")
    foot = f"[{modal['close']['text']}]" + (f" [{submit}]" if submit else "")
    return f"== {modal['title']['text']} ==\n{readable(modal['blocks'])}{foot}\n"


def _run(element: Any) -> str:
    if element["type"] == "user":
        return f"<@{element['user_id']}>"
    address = f"({element['url']})" if element["type"] == "link" else ""
    return f"{element['text']}{address}"


def _rich(part: Any) -> list[str]:
    text = "".join(map(_run, part["elements"]))
    if part["type"] == "rich_text_preformatted":
        return ["+--", *("| " + line for line in text.split("\n")), "+--"]
    return [text]


def _text(text: Any) -> str:
    mark = "" if text["type"] == "plain_text" else "m:"
    return mark + str(text["text"])


def _button(button: Any) -> str:
    if button["type"] == "overflow":
        acts = " / ".join(option["text"]["text"] for option in button["options"])
        return f"[... {acts}]"
    if button["type"] != "button":
        return f"({button['type']})"
    style = {"primary": "*", "danger": "!"}.get(button.get("style", ""), "")
    ask = "?" if "confirm" in button else ""
    return f"[{style}{button['text']['text']}{ask}]"


def _input(block: Any) -> list[str]:
    element = block["element"]
    held: str = element.get("initial_value", element.get("initial_date", ""))
    chosen: list[Any] = element.get("initial_options", [])
    if "initial_option" in element:
        chosen = [element["initial_option"]]
    if chosen:
        held = ", ".join(str(one["text"]["text"]) for one in chosen)
    optional = " (optional)" if block.get("optional") else ""
    return [f"{block['label']['text']}{optional}: <{element['type']}> {held}"]


def _block(block: Any) -> list[str]:
    return _WRITERS[block["type"]](block)


def _context(block: Any) -> list[str]:
    assert_whole(block)
    return ["~ " + " | ".join(map(_text, block["elements"]))]


_WRITERS: dict[str, Callable[[Any], list[str]]] = {
    "header": lambda block: [f"# {_text(block['text'])}"],
    "section": lambda block: [_text(block["text"])],
    "context": _context,
    "divider": lambda _: ["-----"],
    "table": lambda block: [
        "| " + " | ".join(cell["text"] for cell in row) for row in block["rows"]
    ],
    "alert": lambda block: [f"! {block['level']}: {_text(block['text'])}"],
    "actions": lambda block: ["  ".join(map(_button, block["elements"]))],
    "rich_text": lambda block: [line for e in block["elements"] for line in _rich(e)],
    "input": _input,
}
