"""Render a tool call as plain text: its name and one argument per line.

Short arguments are aligned under the tool's name. A long or multi-line one gets a
separate box, so that no value can imitate the line of another argument. The texts are
untrusted; hidden characters are already replaced by visible marks, and only trusted
code writes marks, so two different calls never look the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from keyturn.bot.cards.homoglyphs import homoglyph_warnings
from keyturn.bot.cards.sql import statement_kinds, unlimited
from keyturn.bot.text import excerpt, fit, reveal
from keyturn.gateway.approvals.evidence import Argument, arguments, as_text, redacted
from keyturn.gateway.approvals.invisible_characters import has_hidden, mark
from keyturn.gateway.approvals.policy_decision import Preview, PreviewKind
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.strict_json import JsonObject

UNIT = "x-unit"
"""The keyword of a unit.

JSON Schema 2020-12 keeps names with ``x-`` for extensions:
https://json-schema.org/draft/2020-12/json-schema-core#section-6.5
"""


def title_of(name: str, schema: JsonValue) -> str:
    """Return title and unit unchanged, such as ``Refund, EUR``; "" without both.

    They are shown next to the argument's name, which the tool gets, and never replace
    it. Only for the policy's schema: an agent's title, such as "Amount in cents", would
    change how people read a call.

    Args:
        name: of the argument. A title that only respells it, such as pydantic's default
            titles, is omitted.
        schema: of the argument; ignored unless it is an object.
    """
    if not isinstance(schema, dict):
        return ""
    title, unit = _text(schema.get("title")), _text(schema.get(UNIT))
    says_more = _letters(title) not in {"", _letters(name)}
    return ", ".join(filter(None, [title if says_more else "", unit]))


def argument_titles(schema: JsonObject | None) -> dict[str, str]:
    """Return the title and unit of each declared argument, in the schema's order."""
    declared = (schema or {}).get("properties")
    items = declared.items() if isinstance(declared, dict) else ()
    return {name: title_of(name, one) for name, one in items}


def titles_of(item: Item) -> dict[str, str]:
    """Return the titles of an item's arguments; "" for each without the policy's."""
    titles = argument_titles(item.args_schema)
    return titles if item.has_policy_schema else dict.fromkeys(titles, "")


def _text(value: JsonValue) -> str:
    # On one line and without gaps: text after a gap would read as a value.
    return " ".join(value.split()) if isinstance(value, str) else ""


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


NO_TITLES: Mapping[str, str] = {}

_SHORT_VALUE = 60
_SHORT_NAME = 32
_LONGEST_TITLE = 60
_COLUMN = 24
_ACT_VALUES, _ACT_VALUE = 3, 40
"""Number of arguments that describe a call without a description, and their length."""
_MIN_EXCERPT_CHARS = 80
_MAX_EXCERPT_CHARS = 800  # the rest has to be opened anyway; more would not help
# Spaces that could push a part of a value to where the next line seems to begin.
_GAP = re.compile(r" {3}|[\n\t]")
# Between a name and its value; a name that contains it is quoted.
_BETWEEN = "  "
# Between a name and its title.
_TITLE = " ("
_BRACKETS = re.compile(r"\([^()]*\)")
_TEXT = "⟦text⟧"
# Such as an address with a name, without characters that look like its end.
_ELEMENT = re.compile(r"[^\s,]+(?: [^\s,]+)*")


@dataclass(frozen=True, slots=True)
class Listing:
    """Boxes of text, and how much of a call they show.

    ``shown`` and ``total`` count code points of the text on the card, as its gap does;
    they are equal if the text is complete.
    """

    boxes: tuple[str, ...]
    shown: int
    total: int

    @property
    def is_complete(self) -> bool:
        """Return whether every character of the call is in the boxes."""
        return self.shown == self.total


def boxes(
    tool: str,
    args: JsonObject,
    redact: Iterable[str],
    *,
    titles: Mapping[str, str] = NO_TITLES,
    preview: Preview | None = None,
) -> tuple[str, ...]:
    """Return a whole call as boxes, in fixed order: short arguments, then long ones.

    Both are in the order of the preview, then of the titles (see `argument_titles`),
    then by name. The text of a preview has a separate box.
    """
    order = dict.fromkeys([*(preview.labels if preview else ()), *titles])
    shown = arguments(args, redact, order=[*order])
    short: list[tuple[str, str]] = []
    long: list[tuple[str, str]] = []
    for one in shown:
        name, text = _heading(one, titles, preview), preview_value(one, preview)
        is_beside = is_short(name, text) and not _is_preview_text(one, preview)
        (short if is_beside else long).append((name, text))
    width = min(_COLUMN, max((len(name) for name, _ in short), default=0))
    rows = [f"  {name:<{width}}{_BETWEEN}{text}" for name, text in short]
    if not shown:
        rows = ["  (no arguments)"]
    first = "\n".join([one_line(tool), *rows])
    return (first, *(f"{name}\n{text}" for name, text in long))


def boxes_of(item: Item) -> tuple[str, ...]:
    """Return the whole call of an item as boxes."""
    return boxes(
        item.tool,
        item.args,
        item.redact,
        titles=titles_of(item),
        preview=item.preview,
    )


def fitted(whole: tuple[str, ...], *, budget: int) -> Listing:
    """Return the boxes of a call in at most ``budget`` characters (at least 80).

    A longer call becomes one box with the beginning and the end, and a named gap
    between them; lines of long values are then indented behind a bar.
    """
    total = sum(map(len, whole))
    if total <= budget:
        return Listing(whole, total, total)
    text = "\n".join([whole[0], *(_barred(box) for box in whole[1:])])
    cut = excerpt(text, max(min(budget, _MAX_EXCERPT_CHARS), _MIN_EXCERPT_CHARS))
    # Counted in the text with its bars, like the number in the gap. One less at most:
    # consecutive blank lines take less room than their length.
    return Listing((cut.text,), min(cut.shown, cut.total - 1), cut.total)


def listing_of(item: Item, *, budget: int) -> Listing:
    """Return the call of an item in at most ``budget`` characters."""
    return fitted(boxes_of(item), budget=budget)


def preview_name(name: str, preview: Preview | None) -> str:
    """Return the label that a preview gives an argument, else its name on one line."""
    labels = preview.labels if preview else {}
    if name in labels:
        return labels[name]
    # A name that reads like a label is quoted.
    is_like_label = name.casefold() in {one.casefold() for one in labels.values()}
    return reveal(_without_marks(_quoted(name))) if is_like_label else one_line(name)


def preview_value(argument: Argument, preview: Preview | None) -> str:
    """Return a value as a preview shows it: a list of texts without brackets.

    Other values read as in any other call.
    """
    is_part = preview is not None and argument.name in preview.labels
    if not is_part or argument.is_redacted or not isinstance(argument.value, list):
        return readable(argument)
    found = [one for one in argument.value if isinstance(one, str)]
    is_plain = len(found) == len(argument.value) and all(map(_ELEMENT.fullmatch, found))
    if not found or not is_plain:
        return readable(argument)
    # Only trusted code writes marks, so one text with a comma does not look like a
    # list.
    end = f"⟦list of {len(found)}⟧"
    line = f"{reveal(_without_marks(', '.join(found)))} {end}"
    if is_short("", line):
        return line
    return f"{reveal(_without_marks(chr(10).join(found)))}\n{end}"


def all_text(item: Item) -> str:
    """Return every visible text of a call, unchanged."""
    shown = redacted(item.args, item.redact)
    # Without line breaks, which take a slow path of the library.
    texts = [
        json.dumps(one, ensure_ascii=False)
        if isinstance(one, dict | list)
        else as_text(one)
        for one in shown.values()
    ]
    return "\n".join([item.tool, *shown, *texts])


def is_misleading(item: Item) -> bool:
    """Return whether a call contains hidden or look-alike characters."""
    text = all_text(item)
    return has_hidden(text) or bool(homoglyph_warnings(text))


def needs_a_look(item: Item) -> bool:
    """Return whether the card of a call has a warning about its content."""
    return is_misleading(item) or bool(unlimited(item))


def call_title(item: Item) -> str:
    """Return a one-line title of a call: from the policy, else from its arguments.

    Never from the agent's words, which may be misleading. The title of a question is
    its text.
    """
    if item.is_question:
        first, *others = (one.question for one in item.questions)
        return f"{first} (and {len(others)} more)" if others else first
    if item.bounds is not None:
        return f"Allow similar calls of {one_line(item.bounds.tool)}"
    if item.description:
        return item.description
    required = (item.args_schema or {}).get("required")
    main_first = [
        name
        for name in schema_order(item)
        if isinstance(required, list) and name in required
    ]
    shown_values: list[str] = []
    for one in arguments(item.args, item.redact, order=main_first):
        is_nested = isinstance(one.value, dict | list) and bool(one.value)
        if is_nested or len(one.text) > _ACT_VALUE:
            continue  # it is not shown, and takes long to write
        name, text = one_line(one.name), readable(one)
        if is_short(name, text) and len(text) <= _ACT_VALUE:
            shown_values.append(f"{name} {text}")
            # Later arguments are not rendered: they may be long.
            if len(shown_values) == _ACT_VALUES:
                break
    main = ", ".join(shown_values)
    return f"{one_line(item.tool)}: {main}" if main else one_line(item.tool)


def schema_order(item: Item) -> list[str]:
    """Return the names of the arguments in the schema's order."""
    return [*argument_titles(item.args_schema)]


def one_line(text: str) -> str:
    """Return a name on one line; one with line breaks, gaps or odd edges is quoted."""
    is_odd = _is_odd(text) or _GAP.search(text) or _BETWEEN in text
    return reveal(_without_marks(_quoted(text) if is_odd else text))


def readable(argument: Argument) -> str:
    """Return a value for reading, with visible edges and an unambiguous type.

    A short text that would be misread bare is quoted. A longer text that reads as
    another type is below a mark for text.
    """
    text = _without_marks(argument.text)
    # Only a string can be mistaken for another type: "7" for 7, "null" for null.
    if argument.is_redacted or not isinstance(argument.value, str):
        return reveal(text)
    if len(argument.text) <= _SHORT_VALUE and not _GAP.search(argument.text):
        is_odd = _is_odd(argument.text) or argument.is_like_another
        return reveal(_quoted(text) if is_odd else text)
    kind = f"{_TEXT}\n" if argument.is_like_another else ""
    return reveal(kind + _with_edges(text))


def named_values(
    args: JsonObject, redact: Iterable[str], order: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the arguments as names and values that can be read."""
    shown = arguments(args, redact, order=order)
    return [(one_line(one.name), readable(one)) for one in shown]


def is_short(name: str, text: str, longest: int = _SHORT_VALUE) -> bool:
    """Return whether a value fits next to its name, without a separate box."""
    is_plain = not (_GAP.search(text) or _GAP.search(name))
    return len(name) <= _SHORT_NAME and len(text) <= longest and is_plain


def _heading(
    argument: Argument, titles: Mapping[str, str], preview: Preview | None
) -> str:
    """Return the heading of a value: a label, or a name with its title."""
    if preview is None or argument.name not in preview.labels:
        return _titled(argument.name, titles.get(argument.name, ""), preview)
    # By the visible value: not even the kind of a hidden one is shown.
    is_sql = preview.kind is PreviewKind.SQL and _is_preview_text(argument, preview)
    kinds = statement_kinds(argument.text) if is_sql else ()
    label = preview.labels[argument.name]
    return (
        f"{label}{_TITLE}{fit('; '.join(kinds), _LONGEST_TITLE)})" if kinds else label
    )


def _is_preview_text(argument: Argument, preview: Preview | None) -> bool:
    """Return whether a value is the body or the statement, which has a separate box."""
    is_text = isinstance(argument.value, str) and not argument.is_redacted
    return preview is not None and argument.name == preview.text and is_text


def _titled(name: str, title: str, preview: Preview | None) -> str:
    """Return an argument's name with its title, distinct from any other name."""
    # A name that looks like a name with a title is quoted.
    is_like_titled = _TITLE in name
    plain = preview_name(name, preview)
    shown = reveal(_without_marks(_quoted(name))) if is_like_titled else plain
    if not title:
        return shown
    # A title that closes its bracket could continue like the value.
    if set("()") & set(_BRACKETS.sub("", title)):
        title = _quoted(title)
    return f"{shown}{_TITLE}{fit(_without_marks(title), _LONGEST_TITLE)})"


def _without_marks(text: str) -> str:
    """Show the bracket that begins a mark as a mark itself."""
    # Before `reveal` adds marks, or those would be marked as well.
    return text.replace("⟦", mark("⟦"))


def _is_odd(text: str) -> bool:
    return not text or text.strip() != text or text.startswith('"')


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _with_edges(text: str) -> str:
    """Mark a blank at either end of a longer text, where it would be invisible."""
    first = mark(text[0]) if text[0].isspace() else text[0]
    last = mark(text[-1]) if text[-1].isspace() else text[-1]
    return first + text[1:-1] + last


def _barred(box: str) -> str:
    name, _, text = box.partition("\n")
    return f"  {name}\n" + "\n".join(f"  │ {line}" for line in text.split("\n"))
