"""Render an edit as a diff, argument by argument and word by word, untrusted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import takewhile
from typing import LiteralString, NamedTuple

from pydantic import JsonValue

from keyturn.bot.cards.listing import one_line, preview_name, preview_value
from keyturn.bot.text import excerpt, reveal
from keyturn.gateway.approvals.evidence import Argument, arguments, differences
from keyturn.gateway.approvals.invisible_characters import mark
from keyturn.gateway.approvals.policy_decision import Preview
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.policy.formats import formatted
from keyturn.gateway.protocol.business_state import state_in
from keyturn.gateway.protocol.strict_json import JsonObject

MAX_WORDS = 800
"""Maximum words and blanks compared between the first and the last change.

The time of a comparison grows with their square, and either text may be untrusted.
"""

_WORD = re.compile(r"\S+|\s+")
_BESIDE = 40
"""Unchanged characters that are shown on either side of a change."""


class PartKind(StrEnum):
    """The text that a part of a difference belongs to."""

    SAME = "same"
    REMOVED = "removed"
    ADDED = "added"


class Part(NamedTuple):
    """A stretch of one or both texts, with hidden characters still hidden."""

    kind: PartKind
    text: str


def word_diff(before: str, after: str) -> tuple[Part, ...]:
    """Return the parts of two texts in order, a removed one before its replacement.

    Same and removed parts give ``before``; same and added parts give ``after``. If
    there are more than `MAX_WORDS` between the first and the last change, they are one
    change.
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    middle = _compared(old[head : len(old) - tail], new[head : len(new) - tail])
    first = Part(PartKind.SAME, "".join(old[:head]))
    last = Part(PartKind.SAME, "".join(old[len(old) - tail :]))
    return tuple(part for part in (first, *middle, last) if part.text)


def shown_lines(parts: Sequence[Part]) -> list[tuple[bool, str]]:
    """Return a difference as one text, such as ``a refund of ⟦-20⟧⟦+30⟧ euros``.

    Hidden characters are shown as marks. Only trusted code writes white brackets, so
    neither text can imitate a change. Unchanged words far from a change are omitted,
    and their number of characters is given.

    Returns:
        Its lines, each with whether it has a change.
    """
    # Detected by the parts and not by the brackets: a text may contain a closing one.
    lines = [(False, "")]
    for part, text in zip(parts, _shown_parts(parts), strict=True):
        is_change = part.kind is not PartKind.SAME
        first, *rest = text.split("\n")
        was_changed, before = lines[-1]
        lines[-1] = (was_changed or is_change, before + first)
        lines += [(is_change, line) for line in rest]
    return lines


def _shown_parts(parts: Sequence[Part]) -> list[str]:
    last = len(parts) - 1
    return [
        _beside(part.text, is_first=place == 0, is_last=place == last)
        if part.kind is PartKind.SAME
        else f"⟦{_SIGNS[part.kind]}{_visible(part.text)}⟧"
        for place, part in enumerate(parts)
    ]


_SIGNS = {PartKind.REMOVED: "-", PartKind.ADDED: "+"}


def _alike(first: Sequence[str], second: Sequence[str]) -> int:
    """Count the equal words at the start of both."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _compared(old: Sequence[str], new: Sequence[str]) -> Iterable[Part]:
    if max(len(old), len(new)) > MAX_WORDS:
        return _change(old, new)
    found: list[Part] = []
    removed, added = list[str](), list[str]()
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        same = "".join(old[i:j]) if kind == "equal" else ""
        if same and not same.isspace():
            found += [*_change(removed, added), Part(PartKind.SAME, same)]
            removed, added = [], []
        else:
            # A blank between two changed words reads as part of the change.
            removed += old[i:j]
            added += new[k:m]
    return [*found, *_change(removed, added)]


def _change(old: Sequence[str], new: Sequence[str]) -> list[Part]:
    return [Part(PartKind.REMOVED, "".join(old)), Part(PartKind.ADDED, "".join(new))]


def _beside(text: str, *, is_first: bool, is_last: bool) -> str:
    """Return an unchanged stretch, without its middle if it is long."""
    head, tail = (0 if is_first else _BESIDE), (0 if is_last else _BESIDE)
    left = len(text) - head - tail
    if left <= _BESIDE:
        return _visible(text)
    gap = f"⟦{left:,} characters unchanged⟧"
    return f"{_visible(text[:head])}{gap}{_visible(text[len(text) - tail :])}"


def _visible(text: str) -> str:
    return reveal(text.replace("⟦", mark("⟦")))


_SHORT = 30
_LEAST_BUDGET = 80
_MISSING = "⟦not there⟧"
_TO = " → "
_NO_FORMATS: Mapping[str, str] = {}


def diff(item: Item, *, budget: int) -> str:
    """Return the difference between the requested call and the current one."""
    return changes_of(item, item.requested_args, item.args, budget=budget)


def changes_of(
    item: Item, before: JsonObject, after: JsonObject, *, budget: int
) -> str:
    """Return the difference between two versions of an item's arguments."""
    return changes(
        before,
        after,
        item.redact,
        budget=budget,
        preview=item.preview,
        formats=_by_name(item.formats),
    )


def changes(
    before: JsonObject,
    after: JsonObject,
    redact: tuple[str, ...],
    *,
    budget: int,
    preview: Preview | None = None,
    formats: Mapping[str, str] = _NO_FORMATS,
) -> str:
    """Return the lines ``name  before → after``; "" if nothing differs.

    Both values use the policy's format for the argument, such as ``€449.50``, if it
    fits both and keeps them distinct.

    Longer values are below their name, each line behind ``-`` (before) or ``+``
    (after), so that no value can pass for another line. Two similar texts are shown as
    one text with marked words: lines with changed words are behind ``~``, others behind
    ``|``. Redacted values stay hidden; a text over ``budget`` characters is cut in the
    middle with a mark.
    """
    found = differences(before, after, redact)
    if preview is not None:
        places = {name: place for place, name in enumerate(preview.labels)}
        found = tuple(sorted(found, key=lambda one: places.get(one[0], len(places))))
    rows = [_row(*one, preview, formats.get(one[0], "")) for one in found]
    return excerpt("\n".join(rows), max(budget, _LEAST_BUDGET)).text


def state_text(item: Item) -> str:
    """Return the business state of a call by its keys, with changes marked.

    A key whose value is unchanged since the request reads ``name  value``. Empty
    without a state.
    """
    asked, now = state_in(item.requested), state_in(item.action)
    # Null on both sides means that the tool has no state, and shows nothing; null on
    # one side is a change.
    if asked is None or now is None or asked.value is now.value is None:
        return ""
    before, after = _by_keys(asked.value, now.value), _by_keys(now.value, asked.value)
    changed = {one[0]: _row(*one) for one in differences(before, after)}
    same = {one.name: _kept(one) for one in arguments(after) if one.name not in changed}
    return "\n".join(row for _, row in sorted({**changed, **same}.items()))


def state_title(item: Item) -> LiteralString:
    """Return the title of `state_text`; it depends on whether the state has changed."""
    asked, now = state_in(item.requested), state_in(item.action)
    has_changed = asked is not None and now is not None and not asked.is_same(now)
    if has_changed:
        return "State now (when asked → now, where it changed)"
    return "State when asked"


def _by_keys(value: JsonValue, other: JsonValue) -> JsonObject:
    """Return a state as names and values; one without keys is called ``state``."""
    has_keys = all(isinstance(one, dict) or one is None for one in (value, other))
    if not has_keys or value == {}:
        return {"state": value}
    return value if isinstance(value, dict) else {}


def _kept(argument: Argument) -> str:
    name, text = one_line(argument.name), _shown(argument)
    if "\n" not in text:
        return f"{name}  {text}"
    return "\n".join([name, _marked("  ", text)])


def _row(
    name: str,
    before: Argument | None,
    after: Argument | None,
    preview: Preview | None = None,
    form: str = "",
) -> str:
    old, new = _shown(before, preview), _shown(after, preview)
    written = tuple(_formatted(one, form) for one in (before, after))
    if all(written) and written[0] != written[1]:
        old, new = written
    label = preview_name(name, preview)
    # Both are redacted: the reader learns that the value changed, but not how.
    if old == new:
        return f"{label}  changed, {old}"
    # A value that contains an arrow could pass for another change: "1 → 2" of `a → b`.
    # It goes on separate lines.
    is_plain = not any(sign in old + new for sign in ("\n", _TO))
    if is_plain and max(len(old), len(new)) <= _SHORT:
        return f"{label}  {old}{_TO}{new}"
    lines = _changed_words(before, after)
    if lines:
        marked = [f"{'~' if changed else '|'} {line}" for changed, line in lines]
        return "\n".join([label, *marked])
    return "\n".join([label, _marked("- ", old), _marked("+ ", new)])


def _by_name(formats: Iterable[str]) -> dict[str, str]:
    """Return the formats of top-level arguments, by name."""
    found = [one.partition("|") for one in formats]
    return {
        path.removeprefix("args."): form
        for path, _, form in found
        if path.count(".") == 1
    }


def _formatted(argument: Argument | None, form: str) -> str:
    """Return a value in its format; "" if it has none or does not fit."""
    if not form or argument is None or argument.is_redacted:
        return ""
    return formatted(argument.value, form) or ""


def _changed_words(
    before: Argument | None, after: Argument | None
) -> list[tuple[bool, str]]:
    """Return two texts as lines with marked changes; empty if they are unlike."""
    if before is None or after is None or before.is_redacted or after.is_redacted:
        return []
    if not (isinstance(before.value, str) and isinstance(after.value, str)):
        return []
    parts = word_diff(before.value, after.value)
    same = sum(len(part.text) for part in parts if part.kind is PartKind.SAME)
    is_alike = 2 * same >= max(len(before.value), len(after.value))
    return shown_lines(parts) if is_alike else []


def _shown(argument: Argument | None, preview: Preview | None = None) -> str:
    return _MISSING if argument is None else preview_value(argument, preview)


def _marked(mark: str, text: str) -> str:
    return "\n".join(mark + line for line in text.split("\n"))
