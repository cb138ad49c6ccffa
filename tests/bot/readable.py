"""Write blocks as text, so that a person can read a snapshot of a card or modal."""

from __future__ import annotations

from typing import Any


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


def _block(block: Any) -> list[str]:
    kind = block["type"]
    if kind == "header":
        return [f"# {_text(block['text'])}"]
    if kind == "section":
        return [_text(block["text"])]
    if kind == "context":
        return ["~ " + " | ".join(_text(part) for part in block["elements"])]
    if kind == "divider":
        return ["-----"]
    if kind == "alert":
        return [f"! {block['level']}: {_text(block['text'])}"]
    if kind == "actions":
        return ["  ".join(_button(each) for each in block["elements"])]
    if kind == "rich_text":
        return [line for part in block["elements"] for line in _rich(part)]
    if kind == "input":
        return _input(block)
    raise AssertionError(kind)


def _rich(part: Any) -> list[str]:
    text = "".join(
        f"<@{each['user_id']}>" if each["type"] == "user" else each["text"]
        for each in part["elements"]
    )
    if part["type"] == "rich_text_preformatted":
        return ["+--", *("| " + line for line in text.split("\n")), "+--"]
    return [text]


def _text(text: Any) -> str:
    mark = "" if text["type"] == "plain_text" else "m:"
    return mark + str(text["text"])


def _button(button: Any) -> str:
    if button["type"] != "button":
        return f"({button['type']})"
    style = {"primary": "*", "danger": "!"}.get(button.get("style", ""), "")
    ask = "?" if "confirm" in button else ""
    return f"[{style}{button['text']['text']}{ask}]"


def _input(block: Any) -> list[str]:
    element = block["element"]
    held = element.get("initial_value", element.get("initial_date", ""))
    for key in ("initial_option", "initial_options"):
        chosen = element.get(key)
        if chosen:
            each = chosen if isinstance(chosen, list) else [chosen]
            held = ", ".join(one["text"]["text"] for one in each)
    optional = " (optional)" if block.get("optional") else ""
    return [f"{block['label']['text']}{optional}: <{element['type']}> {held}"]
