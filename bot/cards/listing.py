"""Write a call as text in boxes: the tool, and one argument a line.

Short arguments stand aligned under the tool's name. A long one, or one of several
lines, gets a box of its own, so that no value can draw a line that looks like another
argument. The texts are untrusted; hidden characters are already shown as marks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from bot.hidden import mark
from bot.text import excerpt, has_hidden, mixed_script_warnings, reveal
from gateway.approvals.evidence import Argument, arguments, as_text, redacted
from gateway.approvals.record import Item
from gateway.approvals.strict_json import JsonObject

_SHORT_VALUE = 60
_SHORT_NAME = 32
_COLUMN = 24
_LEAST_ROOM = 80
_EXCERPT = 800  # who has to open the rest anyway needs no wall of text
# Spaces that could push a part of a value to where the next line seems to begin.
_GAP = re.compile(r" {3}|[\n\t]")


@dataclass(frozen=True, slots=True)
class Listing:
    """Boxes of text, and how much of a call they show.

    ``shown`` and ``total`` count characters; they are equal when nothing is left out.
    """

    boxes: tuple[str, ...]
    shown: int
    total: int

    @property
    def is_complete(self) -> bool:
        """Say whether every character of the call is in the boxes."""
        return self.shown == self.total


def boxes(tool: str, args: JsonObject, redact: Iterable[str]) -> tuple[str, ...]:
    """Return a whole call as boxes, in fixed order: short arguments, then long ones."""
    shown = [_shown(argument) for argument in arguments(args, redact)]
    short = [argument for argument in shown if _is_short(argument)]
    long = [argument for argument in shown if not _is_short(argument)]
    width = min(_COLUMN, max((len(argument.name) for argument in short), default=0))
    rows = [f"  {argument.name:<{width}}  {argument.text}" for argument in short]
    if not shown:
        rows = ["  (no arguments)"]
    first = "\n".join([reveal(_one_line(tool)), *rows])
    return (first, *(_own_box(argument) for argument in long))


def listing(
    tool: str, args: JsonObject, redact: Iterable[str], *, room: int
) -> Listing:
    """Return a call in at most ``room`` characters, whole if that is possible.

    What does not fit becomes one box with the beginning and the end, the gap named in
    between; lines of long values are then indented behind a bar.
    """
    whole = boxes(tool, args, redact)
    total = sum(map(len, whole))
    if total <= room:
        return Listing(whole, total, total)
    text = "\n".join([whole[0], *(_barred(box) for box in whole[1:])])
    cut = excerpt(text, max(min(room, _EXCERPT), _LEAST_ROOM))
    # Bars are ours and do not count: at least one character is missing here.
    return Listing((cut.text,), min(cut.shown, total - 1), total)


def fits(tool: str, args: JsonObject, redact: Iterable[str], *, room: int) -> bool:
    """Say whether a whole call fits in ``room`` characters."""
    return sum(map(len, boxes(tool, args, redact))) <= room


def all_text(item: Item) -> str:
    """Return every text of a call that is shown, as it came."""
    shown = redacted(item.args, item.redact)
    return "\n".join([item.tool, *shown, *map(as_text, shown.values())])


def is_misleading(item: Item) -> bool:
    """Say whether a call holds characters that hide, or look like others."""
    text = all_text(item)
    return has_hidden(text) or bool(mixed_script_warnings(text))


def summary(item: Item) -> str:
    """Return the policy's description of a call; it is of what was asked for first."""
    if item.edit is not None and item.description:
        return f"Asked for at first: {item.description}"
    return item.description


def one_line(text: str) -> str:
    """Return a name on one line; one with line breaks or odd edges is quoted."""
    return reveal(_one_line(text))


def _shown(argument: Argument) -> Argument:
    """Return an argument as it is read: nothing hidden, and no edge unseen."""
    text = argument.text
    if not argument.is_redacted:
        is_line = len(text) <= _SHORT_VALUE and not _GAP.search(text)
        text = _quoted_if_odd(text) if is_line else _with_edges(text)
    return Argument(
        name=_one_line(argument.name),
        text=reveal(text),
        is_redacted=argument.is_redacted,
    )


def _quoted_if_odd(text: str) -> str:
    """Quote a short text that would be misread bare, such as an empty one."""
    is_odd = not text or text.strip() != text or text.startswith('"')
    return json.dumps(text, ensure_ascii=False) if is_odd else text


def _with_edges(text: str) -> str:
    """Mark a blank at either end of a longer text, where nobody would see it."""
    first = mark(text[0]) if text[0].isspace() else text[0]
    last = mark(text[-1]) if text[-1].isspace() else text[-1]
    return first + text[1:-1] + last


def _one_line(name: str) -> str:
    is_odd = not name or name.strip() != name or _GAP.search(name) or name[0] == '"'
    return json.dumps(name, ensure_ascii=False) if is_odd else name


def _is_short(argument: Argument) -> bool:
    return (
        len(argument.name) <= _SHORT_NAME
        and len(argument.text) <= _SHORT_VALUE
        and not _GAP.search(argument.text)
        and not _GAP.search(argument.name)
    )


def _own_box(argument: Argument) -> str:
    return f"{reveal(argument.name)}\n{argument.text}"


def _barred(box: str) -> str:
    name, _, text = box.partition("\n")
    return f"  {name}\n" + "\n".join(f"  │ {line}" for line in text.split("\n"))
