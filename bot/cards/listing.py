"""Render a tool call, or an edit of one, as plain text.

A call is its name and one argument per line. An edit is a diff, argument by argument
and word by word.

Short arguments are aligned under the tool's name. A long or multi-line one gets a
separate box, so that no value can imitate the line of another argument. The texts are
untrusted; hidden characters are already replaced by visible marks, and only trusted
code writes marks, so two different calls never look the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from types import MappingProxyType
from typing import LiteralString, NamedTuple

from pydantic import JsonValue

from keyturn.bot.cards.warnings import homoglyph_warnings, statement_kinds, unlimited
from keyturn.bot.text import LINE, MIN_EXCERPT, NAME, excerpt, fit, reveal
from keyturn.gateway.approvals.evidence import (
    HIDDEN,
    Argument,
    Difference,
    arguments,
    as_text,
    differences,
    nested_differences,
    redacted,
)
from keyturn.gateway.approvals.invisible_characters import has_hidden, mark
from keyturn.gateway.approvals.policy_decision import Preview, PreviewKind
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.policy.formats import formatted, is_usual_spelling
from keyturn.gateway.protocol.digest import state_in
from keyturn.gateway.protocol.records import EditRecord
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


def _text(value: JsonValue) -> str:
    # On one line and without gaps: text after a gap would read as a value.
    return " ".join(value.split()) if isinstance(value, str) else ""


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


class Forms(NamedTuple):
    """How to write the arguments of a tool.

    Attributes:
        titles: title and unit of each argument; see `argument_titles`.
        preview: the arguments shown as an e-mail or a statement.
        formats: the policy's formats by dotted path.
        texts: names of the arguments that are declared as texts.
    """

    titles: Mapping[str, str] = MappingProxyType({})
    preview: Preview | None = None
    formats: Mapping[str, str] = MappingProxyType({})
    texts: frozenset[str] = frozenset()


NO_FORMS = Forms()


def forms_of(item: Item) -> Forms:
    """Return how the arguments of an item are written."""
    titles = argument_titles(item.args_schema)
    if not item.has_policy_schema:
        titles = dict.fromkeys(titles, "")
    found = (one.removeprefix("args.").partition("|") for one in item.formats)
    declared = (item.args_schema or {}).get("properties")
    schemas = declared.items() if isinstance(declared, dict) else ()
    texts = (
        name
        for name, schema in schemas
        if isinstance(schema, dict) and schema.get("type") == "string"
    )
    formats = {path: form for path, _, form in found}
    return Forms(titles, item.preview, formats, frozenset(texts))


_SHORT_VALUE = 60
_SHORT_NAME = 32
_COLUMN = 24
_ACT_VALUES, _ACT_VALUE = 3, 40
"""Number of arguments that describe a call without a description, and their length."""
_MAX_EXCERPT_CHARS = 800  # the rest has to be opened anyway; more would not help
# Spaces that could push a part of a value to where the next line seems to begin.
_GAP = re.compile(r" {3}|[\n\t]")
# Between a name and its value; a name that contains it is quoted.
_BETWEEN = "  "
# Between a name and its title.
_TITLE = " ("
_TEXT = "⟦text⟧"


class Listing(NamedTuple):
    """Boxes of text, and whether every character of a call is in them."""

    boxes: tuple[str, ...]
    is_complete: bool


def boxes(
    tool: str, args: JsonObject, redact: Iterable[str], forms: Forms = NO_FORMS
) -> tuple[str, ...]:
    """Return a whole call as boxes, in fixed order: short arguments, then long ones.

    Both are in the order of the preview, then of the titles, then by name. The text of
    a preview has a separate box.
    """
    preview = forms.preview
    order = dict.fromkeys([*(preview.labels if preview else ()), *forms.titles])
    shown = arguments(args, redact, order=[*order])
    short: list[tuple[str, str]] = []
    long: list[tuple[str, str]] = []
    before = _replaced(shown, preview)
    for one in shown:
        if one is before:
            continue
        name, text = _heading(one, forms), _previewed(one, forms, before)
        is_beside = is_short(name, text) and not _is_preview_text(one, preview)
        (short if is_beside else long).append((name, text))
    width = min(_COLUMN, max((len(name) for name, _ in short), default=0))
    rows = [f"  {name:<{width}}{_BETWEEN}{text}" for name, text in short]
    if not shown:
        rows = ["  (no arguments)"]
    first = "\n".join([one_line(tool), *rows])
    return (first, *(f"{name}\n{text}" for name, text in long))


def boxes_of(item: Item, args: JsonObject) -> tuple[str, ...]:
    """Return a whole call with these arguments as boxes."""
    return boxes(item.tool, args, item.redact, forms_of(item))


def fitted(whole: tuple[str, ...], *, budget: int) -> Listing:
    """Return the boxes of a call in at most ``budget`` characters (at least 80).

    A longer call becomes one box with the beginning and the end, and a named gap
    between them; lines of long values are then indented behind a bar.
    """
    if sum(map(len, whole)) <= budget:
        return Listing(whole, is_complete=True)
    text = "\n".join([whole[0], *(_barred(box) for box in whole[1:])])
    cut = excerpt(text, max(min(budget, _MAX_EXCERPT_CHARS), MIN_EXCERPT))
    # Never complete: blank lines, which take less room than their length, may be gone.
    return Listing((cut,), is_complete=False)


def listing_of(item: Item, *, budget: int) -> Listing:
    """Return the call of an item in at most ``budget`` characters."""
    return fitted(boxes_of(item, item.args), budget=budget)


def preview_name(name: str, preview: Preview | None) -> str:
    """Return the label that a preview gives an argument, else its name on one line."""
    labels = preview.labels if preview else {}
    if name in labels:
        return labels[name]
    # A name that reads like a label is quoted.
    is_like_label = name.casefold() in {one.casefold() for one in labels.values()}
    return reveal(_without_marks(_quoted(name))) if is_like_label else one_line(name)


def _previewed(argument: Argument, forms: Forms, before: Argument | None) -> str:
    """Return a value for reading; a list in a preview, as of addresses, on one line."""
    preview = forms.preview
    if preview is None or argument.name not in preview.labels:
        return written(argument, forms)
    old = before.text if before else ""
    is_change = preview.kind is PreviewKind.CHANGE and (old or argument.text)
    if is_change and _is_preview_text(argument, preview):
        return line_diff(old, argument.text)
    if argument.is_redacted or not isinstance(argument.value, list):
        return written(argument, forms)
    return _visible(json.dumps(argument.value, ensure_ascii=False))


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


def needs_a_look(item: Item) -> bool:
    """Return whether the card of a call has a warning about its content."""
    text = all_text(item)
    return has_hidden(text) or bool(homoglyph_warnings(text) or unlimited(item))


def calls_title(items: Sequence[Item], room: int = LINE) -> str:
    """Return a one-line title of several calls: their number, and acts or tools."""
    acts = ", ".join(dict.fromkeys(one.act or one_line(one.tool) for one in items))
    is_of_one = len({one.act or one.tool for one in items}) == 1
    return f"{len(items)} {'×' if is_of_one else 'calls:'} {fit(acts, room)}"


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
    order, forms = [*argument_titles(item.args_schema)], forms_of(item)
    shown_values: list[str] = []
    for one in arguments(item.args, item.redact, order=order):
        # A longer one is not shown, and takes long to write.
        is_long = len(one.text) > _ACT_VALUE
        text = one.text if is_long else written(one, forms)
        if is_short(name := one_line(one.name), text, _ACT_VALUE):
            shown_values.append(f"{name} {text}")
        if len(shown_values) == _ACT_VALUES:
            break
    main = ", ".join(shown_values)
    return f"{one_line(item.tool)}: {main}" if main else one_line(item.tool)


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
    # A blank at either end of a longer text would be invisible.
    first, last = (mark(one) if one.isspace() else one for one in (text[0], text[-1]))
    return reveal(f"{kind}{first}{text[1:-1]}{last}")


def written(argument: Argument, forms: Forms = NO_FORMS) -> str:
    """Return a value as the policy formats it, such as ``€899.00``.

    Only one value of an argument is written so. The others of the same amount or day
    have their own spelling behind it, and values without a format are `readable`.
    A text needs no quotes where the schema declares a text.
    """
    value, text = argument.value, readable(argument)
    if argument.is_redacted:
        return text
    form = forms.formats.get(argument.name, "")
    is_declared = argument.name in forms.texts
    if not isinstance(value, str):
        text = formatted(value, form) or text if form else text
        return f"⟦not text⟧ {text}" if is_declared else text
    if form:
        # Quoted, a text without a format cannot be mistaken for a formatted value.
        shown, quoted = formatted(value, form), _visible(_quoted(value))
        if shown is None:
            return quoted
        is_one = (is_declared or form == "date") and is_usual_spelling(value, form)
        return shown if is_one else f"{shown} ({quoted})"
    # Blanks at the edges and empty texts would be invisible without quotes, and
    # `HIDDEN` would read as a value that the policy hides.
    is_plain = (
        text == f'"{value}"' and value.strip() == value and value not in {"", HIDDEN}
    )
    return value if is_declared and is_plain else text


def named_values(item: Item) -> list[tuple[str, str]]:
    """Return the arguments as names and values that can be read."""
    order, forms = [*argument_titles(item.args_schema)], forms_of(item)
    shown = arguments(item.args, item.redact, order=order)
    return [(one_line(one.name), written(one, forms)) for one in shown]


def is_short(name: str, text: str, longest: int = _SHORT_VALUE) -> bool:
    """Return whether a value fits next to its name, without a separate box."""
    is_plain = not (_GAP.search(text) or _GAP.search(name))
    return len(name) <= _SHORT_NAME and len(text) <= longest and is_plain


def _heading(argument: Argument, forms: Forms) -> str:
    """Return the heading of a value: a label, or a name with its title."""
    preview = forms.preview
    if preview is None or argument.name not in preview.labels:
        return _titled(argument.name, forms.titles.get(argument.name, ""), preview)
    # By the visible value: not even the kind of a hidden one is shown.
    is_sql = preview.kind is PreviewKind.SQL and _is_preview_text(argument, preview)
    kinds = statement_kinds(argument.text) if is_sql else ()
    label = preview.labels[argument.name]
    return f"{label}{_TITLE}{fit('; '.join(kinds), NAME)})" if kinds else label


def _is_preview_text(argument: Argument, preview: Preview | None) -> bool:
    """Return whether a value is a preview's text, which has a separate box."""
    is_named = preview is not None and argument.name == preview.text
    return is_named and _is_visible_text(argument)


def _is_visible_text(argument: Argument) -> bool:
    return isinstance(argument.value, str) and not argument.is_redacted


def _replaced(shown: Iterable[Argument], preview: Preview | None) -> Argument | None:
    """Return the text that a change replaces; it is shown with the new text."""
    if preview is None or preview.kind is not PreviewKind.CHANGE:
        return None
    before, after = preview.labels
    texts = {one.name: one for one in shown if _is_visible_text(one)}
    old = texts.get(before)
    return old if old and old.text and after in texts else None


def _titled(name: str, title: str, preview: Preview | None) -> str:
    """Return an argument's name with its title, distinct from any other name."""
    shown = preview_name(name, preview)
    # A name that looks like a name with a title is quoted.
    if _TITLE in name:
        shown = reveal(_without_marks(_quoted(name)))
    if not title:
        return shown
    # A title that closes its bracket could continue like the value.
    if ")" in title:
        title = _quoted(title)
    return f"{shown}{_TITLE}{fit(_without_marks(title), NAME)})"


def _without_marks(text: str) -> str:
    """Show the bracket that begins a mark as a mark itself."""
    # Before `reveal` adds marks, or those would be marked as well.
    return text.replace("⟦", mark("⟦"))


def _is_odd(text: str) -> bool:
    return not text or text.strip() != text or text.startswith('"')


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _barred(box: str) -> str:
    name, _, text = box.partition("\n")
    return f"  {name}\n" + "\n".join(f"  │ {line}" for line in text.split("\n"))


MAX_WORDS, MAX_LINES = 800, 200
"""Maximum words and blanks, or lines, compared between the first and the last change.

The time of a comparison grows with their square, and either text may be untrusted.
Lines are compared each time a card is drawn.
"""

_WORD = re.compile(r"\S+|\s+")
_LINE = re.compile(r"[^\n]*\n")
_BESIDE = 40
"""Unchanged characters that are shown on either side of a change."""


class Part(NamedTuple):
    """A stretch of one or both texts, with hidden characters still hidden.

    ``sign`` is ``-`` if it was removed, ``+`` if it was added, and empty if it stayed.
    """

    sign: str
    text: str


def word_diff(before: str, after: str) -> tuple[Part, ...]:
    """Return the parts of two texts in order, a removed one before its replacement.

    Same and removed parts give ``before``; same and added parts give ``after``. If
    there are more than `MAX_WORDS` between the first and the last change, they are one
    change.
    """
    return _diff(_WORD.findall(before), _WORD.findall(after), MAX_WORDS)


def _diff(old: Sequence[str], new: Sequence[str], most: int) -> tuple[Part, ...]:
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    middle = _compared(old[head : len(old) - tail], new[head : len(new) - tail], most)
    last = "".join(old[len(old) - tail :])
    parts = (Part("", "".join(old[:head])), *middle, Part("", last))
    return tuple(part for part in parts if part.text)


def line_diff(before: str, after: str) -> str:
    """Return every line of two texts: behind ``-`` if removed, ``+`` if added.

    A line that stays is behind ``|``. Hidden characters are shown as marks. More than
    `MAX_LINES` between the first and the last change are one change.
    """
    # The added line break makes a text's last line equal to the same line inside of
    # another text.
    old, new = (f"{text}\n" if text else "" for text in (before, after))
    return "\n".join(
        _marked(f"{part.sign or '|'} ", _visible(part.text[:-1]))
        for part in _diff(_LINE.findall(old), _LINE.findall(new), MAX_LINES)
    )


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
    last = len(parts) - 1
    for place, (sign, text) in enumerate(parts):
        shown = f"⟦{sign}{_visible(text)}⟧"
        if not sign:
            shown = _beside(text, is_first=place == 0, is_last=place == last)
        first, *rest = shown.split("\n")
        was_changed, before = lines[-1]
        lines[-1] = (was_changed or bool(sign), before + first)
        lines += [(bool(sign), line) for line in rest]
    return lines


def _alike(first: Sequence[str], second: Sequence[str]) -> int:
    """Count the equal words at the start of both."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _compared(old: Sequence[str], new: Sequence[str], most: int) -> list[Part]:
    if max(len(old), len(new)) > most:
        return [Part("-", "".join(old)), Part("+", "".join(new))]
    found: list[Part] = []
    removed = added = ""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        before, after = "".join(old[i:j]), "".join(new[k:m])
        if kind == "equal" and before.strip():
            found += [Part("-", removed), Part("+", added), Part("", before)]
            removed = added = ""
        else:
            # A blank between two changed words reads as part of the change.
            removed += before
            added += after
    return [*found, Part("-", removed), Part("+", added)]


def _beside(text: str, *, is_first: bool, is_last: bool) -> str:
    """Return an unchanged stretch, without its middle if it is long."""
    head, tail = (0 if is_first else _BESIDE), (0 if is_last else _BESIDE)
    left = len(text) - head - tail
    if left <= _BESIDE:
        return _visible(text)
    gap = f"⟦{left:,} characters unchanged⟧"
    return f"{_visible(text[:head])}{gap}{_visible(text[len(text) - tail :])}"


def _visible(text: str) -> str:
    return reveal(_without_marks(text))


_SHORT = 30
_MISSING = "⟦not there⟧"
_TO = " → "
_BY = ", by "


def diff(item: Item, *, budget: int) -> str:
    """Return the difference between the requested call and the current one."""
    return changes_of(item, item.requested_args, item.args, budget=budget)


def edit_text(item: Item, *, budget: int) -> str:
    """Return an edit with its editor and the reason; "" without one.

    One change is on one line: ``amount €2.00 → €1.00, by Ana: half of it``.
    """
    change = diff(item, budget=budget)
    if item.edit is None:
        return ""
    if "\n" in change:
        return excerpt(f"{change}\n{editor(item.edit)}", 2 * budget)
    change = change.replace(_BETWEEN, " ", 1)
    return fit(f"{change}, {editor(item.edit)}", 2 * budget)


def editor(edit: EditRecord) -> str:
    """Return who edited a call and why: ``by Ana: half of it``."""
    reason = f": {edit.reason}" if edit.reason else ""
    return f"by {fit(edit.by.name or edit.by.user, NAME)}{reason}"


def changes_of(
    item: Item, before: JsonObject, after: JsonObject, *, budget: int
) -> str:
    """Return the lines ``name  before → after`` of two versions of the arguments.

    Of objects only the values that differ are shown, by their paths; "" if nothing
    differs.

    Longer values are below their name, each line behind ``-`` (before) or ``+``
    (after), so that no value can pass for another line. Two similar texts are shown as
    one text with marked words: lines with changed words are behind ``~``, others behind
    ``|``. Redacted values stay hidden; a text over ``budget`` characters is cut in the
    middle with a mark.
    """
    forms = forms_of(item)
    found = nested_differences(before, after, item.redact)
    if forms.preview is not None:
        places = {name: place for place, name in enumerate(forms.preview.labels)}
        found = tuple(sorted(found, key=lambda one: places.get(one[0], len(places))))
    rows = [_row(*one, forms) for one in found]
    return excerpt("\n".join(rows), max(budget, MIN_EXCERPT))


def state_text(item: Item) -> str:
    """Return the business state of a call by its keys, with changes marked.

    A key whose value is unchanged since the request reads ``name  value``, or
    ``name  value → argument`` if the call has another value under the same name. Empty
    without a state.
    """
    asked, now = state_in(item.requested), state_in(item.action)
    # Null on both sides means that the tool has no state, and shows nothing; null on
    # one side is a change.
    if asked is None or now is None or asked.value is now.value is None:
        return ""
    before, after = _by_keys(asked.value, now.value), _by_keys(now.value, asked.value)
    changes = differences(before, after, item.redact)
    changed = {one[0]: _row(*one) for one in changes}
    kept = [one for one in arguments(after, item.redact) if one.name not in changed]
    same = {one.name: _kept(one) for one in kept}
    forms = forms_of(item)
    same |= {
        one[0]: _row(*one, forms) for one in _proposed(item, after) if one[0] in same
    }
    return "\n".join(row for _, row in sorted({**changed, **same}.items()))


def state_title(item: Item) -> LiteralString:
    """Return the title of `state_text`; it depends on whether the state has changed."""
    asked, now = state_in(item.requested), state_in(item.action)
    has_changed = asked is not None and now is not None and not asked.is_same(now)
    if has_changed:
        return "State now (when asked → now, where it changed)"
    if now is not None and _proposed(item, _by_keys(now.value, now.value)):
        return "State when asked → with this call"
    return "State when asked"


def _proposed(item: Item, state: JsonObject) -> tuple[Difference, ...]:
    """Return the values of a state that the call sets to others, by the same names."""
    names = [name for name in state if name in item.args]
    before, after = ({name: one[name] for name in names} for one in (state, item.args))
    return differences(before, after, item.redact)


def _by_keys(value: JsonValue, other: JsonValue) -> JsonObject:
    """Return a state as names and values; one without keys is called ``state``."""
    has_keys = all(isinstance(one, dict) or one is None for one in (value, other))
    if not has_keys or value == {}:
        return {"state": value}
    return value if isinstance(value, dict) else {}


def _kept(argument: Argument) -> str:
    name, text = one_line(argument.name), readable(argument)
    if "\n" not in text:
        return f"{name}  {text}"
    return "\n".join([name, _marked("  ", text)])


def _row(
    name: str,
    before: Argument | None,
    after: Argument | None,
    forms: Forms = NO_FORMS,
) -> str:
    old, new = (
        _MISSING if one is None else written(one, forms) for one in (before, after)
    )
    label = preview_name(name, forms.preview)
    # Both are redacted: the reader learns that the value changed, but not how.
    if old == new:
        return f"{label}  changed, {old}"
    # A value that contains an arrow could pass for another change: "1 → 2" of `a → b`,
    # or for the editor. It goes on separate lines.
    is_plain = not any(sign in old + new for sign in ("\n", _TO, _BY))
    if is_plain and max(len(old), len(new)) <= _SHORT:
        return f"{label}  {old}{_TO}{new}"
    lines = _changed_words(before, after)
    if lines:
        marked = [f"{'~' if changed else '|'} {line}" for changed, line in lines]
        return "\n".join([label, *marked])
    return "\n".join([label, _marked("- ", old), _marked("+ ", new)])


def _changed_words(
    before: Argument | None, after: Argument | None
) -> list[tuple[bool, str]]:
    """Return two texts as lines with marked changes; empty if they are unlike."""
    if before is None or after is None or before.is_redacted or after.is_redacted:
        return []
    if not (isinstance(before.value, str) and isinstance(after.value, str)):
        return []
    parts = word_diff(before.value, after.value)
    same = sum(len(part.text) for part in parts if not part.sign)
    is_alike = 2 * same >= max(len(before.value), len(after.value))
    return shown_lines(parts) if is_alike else []


def _marked(mark: str, text: str) -> str:
    return "\n".join(mark + line for line in text.split("\n"))
