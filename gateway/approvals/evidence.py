"""Render a call's arguments as redacted text for reviewers, in fixed order.

Redaction changes only the displayed text, never the hashed and executed bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from pydantic import JsonValue

from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import JsonObject

HIDDEN = "•••••• (hidden by policy)"

# NaN and Infinity are no JSON, but `json.loads` accepts them.
_STARTS_OF_JSON = frozenset('[{"-0123456789tfnNI')


class Argument(Record):
    """One argument for display; a redacted part is replaced by a fixed text."""

    name: str
    value: JsonValue
    is_redacted: bool = False

    @property
    def text(self) -> str:
        """Return the untrusted text of the value."""
        return as_text(self.value)

    @property
    def is_like_another(self) -> bool:
        """Return True if this text, unquoted, would look like another kind of value."""
        if self.is_redacted or not isinstance(self.value, str):
            return False
        # Most texts do not begin like JSON: skip the parser for them.
        if self.value.lstrip()[:1] not in _STARTS_OF_JSON:
            return self.value == HIDDEN
        try:
            json.loads(self.value)
        except ValueError:
            return self.value == HIDDEN
        # Deeply nested brackets make the parser fail; such a text looks like JSON.
        except RecursionError:
            return True
        return True


def redacted(args: JsonObject, paths: Iterable[str]) -> JsonObject:
    """Return a copy in which every redacted part is replaced by a fixed text.

    Args:
        args: the arguments.
        paths: dotted paths such as ``args.card.number``; ``*`` matches every member or
            element of one level. A name also applies to the elements of a list: if
            ``card`` is a list, at any depth of lists, the number of each element is
            hidden. If the path continues below a value that is no object, the whole
            value is hidden.
    """
    # A copy: the original is still hashed and run.
    shown: JsonObject = dict(args)
    for path in paths:
        shown = _hide_members(shown, path.removeprefix("args.").split("."))
    return shown


def arguments(
    args: JsonObject, paths: Iterable[str] = (), *, order: Sequence[str] = ()
) -> tuple[Argument, ...]:
    """Return the arguments for a card, those named in ``order`` first, then by name."""
    shown = redacted(args, paths)
    # A fixed order: a model chooses the original one, and could put a value out of
    # sight.
    first = {name: place for place, name in enumerate(order)}
    names = sorted(shown, key=lambda name: (first.get(name, len(first)), name))
    return tuple(
        Argument(name=name, value=shown[name], is_redacted=shown[name] != args[name])
        for name in names
    )


def as_text(value: JsonValue) -> str:
    """Return a value for people: text without quotes, everything else as JSON."""
    if isinstance(value, str):
        return value
    is_nested = isinstance(value, dict | list)
    return json.dumps(value, ensure_ascii=False, indent=2 if is_nested else None)


def shortened(text: str, most: int) -> str:
    """Cut a long string, and append the number of characters cut."""
    cut = len(text) - most
    return text if cut <= 0 else f"{text[:most]}… ({cut} more characters)"


Difference: TypeAlias = tuple[str, Argument | None, Argument | None]


def differences(
    before: JsonObject, after: JsonObject, paths: Iterable[str] = ()
) -> tuple[Difference, ...]:
    """Return (name, before, after) of every top-level argument that differs.

    A missing argument is None; redacted parts are hidden.
    """
    hidden = tuple(paths)
    return tuple(_differing((before, after), _shown(before, after, hidden)))


def nested_differences(
    before: JsonObject, after: JsonObject, paths: Iterable[str] = ()
) -> tuple[Difference, ...]:
    """Return the same for the innermost values, by dotted paths: ``order.lines.0.qty``.

    A list whose length changed is one value.
    """
    hidden = tuple(paths)
    return tuple(_inner((before, after), _shown(before, after, hidden)))


_Both: TypeAlias = tuple[JsonObject, JsonObject]


def _shown(before: JsonObject, after: JsonObject, paths: Iterable[str]) -> _Both:
    return redacted(before, paths), redacted(after, paths)


def _differing(values: _Both, shown: _Both) -> Iterator[Difference]:
    # Compare before redaction: a change of a hidden value is a change, too.
    for name in sorted({*values[0], *values[1]}):
        old, new = (
            Argument(name=name, value=seen[name], is_redacted=seen[name] != value[name])
            if name in value
            else None
            for value, seen in zip(values, shown, strict=True)
        )
        raw = [_json(value[name]) for value in values if name in value]
        if len(raw) == 1 or raw[0] != raw[1]:
            yield name, old, new


def _inner(values: _Both, shown: _Both, above: str = "") -> Iterator[Difference]:
    for name, old, new in _differing(values, shown):
        # Escaped, so that two paths are never the same.
        path = above + name.replace("\\", "\\\\").replace(".", "\\.")
        inside = _members(old, new)
        if inside is None:
            named = [one and one.with_(name=path) for one in (old, new)]
            yield path, named[0], named[1]
            continue
        whole = [Argument(name=name, value=value[name]) for value in values]
        yield from _inner(_members(*whole) or inside, inside, f"{path}.")


def _members(old: Argument | None, new: Argument | None) -> _Both | None:
    """Return the members of two objects, or of two lists of the same length."""
    match old and old.value, new and new.value:
        case dict(before), dict(after):
            return before, after
        case list(first), list(second) if len(first) == len(second):
            return _numbered(first), _numbered(second)
        case _:
            return None


def _numbered(values: Sequence[JsonValue]) -> JsonObject:
    return {str(place): value for place, value in enumerate(values)}


def original_text(
    original: JsonObject, args: JsonObject, paths: Iterable[str] = ()
) -> str:
    """Return, on one line, a model's arguments that its tool reads differently.

    A value is shown only if the argument of that name is also shown: under another
    name, the policy might have redacted it.
    """
    # Match only the first name: the model's arguments may have another shape, so a path
    # into an argument hides all of it here.
    hidden = {path.removeprefix("args.").split(".")[0] for path in paths}
    listed: list[str] = []
    for name, value in sorted(original.items()):
        if name not in args:
            listed.append(f"{name} (no argument of this name runs)")
        elif _json(value) != _json(args[name]):
            is_shown = not hidden & {name, "*"}
            listed.append(f"{name} = {_json(value)}" if is_shown else name)
    return ", ".join(listed)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _hide_members(node: JsonObject, tokens: list[str]) -> JsonObject:
    head, *rest = tokens
    return {
        key: _hide(member, rest) if head in {key, "*"} else member
        for key, member in node.items()
    }


def _hide(node: JsonValue, tokens: list[str]) -> JsonValue:
    if not tokens:
        return HIDDEN
    if isinstance(node, dict):
        return _hide_members(node, tokens)
    if isinstance(node, list):
        head, *rest = tokens
        # Hide the name in each element: a list of values must not reveal it.
        if not (head == "*" or head.isdecimal()):
            return [_hide(element, tokens) for element in node]
        return [
            _hide(element, rest) if head in {str(index), "*"} else element
            for index, element in enumerate(node)
        ]
    # The hidden value would be inside this one. A model may pass the inner value
    # directly, if the schema allows it, so hide it too.
    return node if node is None else HIDDEN
