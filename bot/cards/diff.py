"""Write what an edit changed, argument by argument, as untrusted text."""

from __future__ import annotations

from bot.cards.listing import one_line, readable
from bot.text import excerpt
from gateway.approvals.evidence import Argument, differences
from gateway.approvals.record import Item
from gateway.approvals.strict_json import JsonObject

_SHORT = 30
_LEAST_ROOM = 80
_MISSING = "⟦not there⟧"
_TO = " → "


def diff(item: Item, *, room: int) -> str:
    """Return the difference between the requested call and the one that would run."""
    return changes(item.requested_args, item.args, item.redact, room=room)


def changes(
    before: JsonObject, after: JsonObject, redact: tuple[str, ...], *, room: int
) -> str:
    """Return the lines ``name  before → after``; "" when nothing differs.

    Longer values stand below their name, each line behind ``-`` (before) or ``+``
    (after), so that no value can pass for another line. Redacted values stay hidden;
    a text over ``room`` characters is cut in the middle with a mark.
    """
    rows = [_row(*one) for one in differences(before, after, redact)]
    return excerpt("\n".join(rows), max(room, _LEAST_ROOM)).text


def _row(name: str, before: Argument | None, after: Argument | None) -> str:
    old, new = _shown(before), _shown(after)
    label = one_line(name)
    if old == new:
        return f"{label}  changed, {old}"
    is_plain = not any(sign in old + new for sign in ("\n", _TO))
    if is_plain and max(len(old), len(new)) <= _SHORT:
        return f"{label}  {old}{_TO}{new}"
    return "\n".join([label, _marked("- ", old), _marked("+ ", new)])


def _shown(argument: Argument | None) -> str:
    return _MISSING if argument is None else readable(argument)


def _marked(mark: str, text: str) -> str:
    return "\n".join(mark + line for line in text.split("\n"))
