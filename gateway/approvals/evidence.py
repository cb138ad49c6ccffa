"""Render a call's arguments and texts for reviewers: redacted, without private data.

Redaction changes only the displayed text, never the hashed and executed bytes. Private
data in texts of agents and tools is replaced before anything is stored, so it is in no
card, message, log or copy of the store. Arguments are not changed: people see the
arguments that run, except those under ``redact`` in the policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TypeAlias

from pydantic import JsonValue

from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.digest import action_args
from keyturn.gateway.protocol.records import Person, Record, Result
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


MAX_WORDS = 16 * 1024
"""Longest stored text of an agent or a tool, in characters."""

_AROUND = 1024
"""Data that is hidden by its form is shorter than this."""


class PrivateData(StrEnum):
    """Private data with a recognizable form."""

    CARD_NUMBERS = "card_numbers"
    EMAIL_ADDRESSES = "email_addresses"


SOMEBODY = Person(team="", user="", name="A reviewer")
"""Replaces the person who decided, for agents that must not know who did."""


_DIGITS = re.compile(r"\d(?:[ \u00a0\u202f.-]?\d){13,}")
_CARD_LENGTHS = range(19, 13, -1)
"""ISO/IEC 7812-1: 19 digits at most. No card in use has fewer than 14, so times in
milliseconds do not match.
"""

# Local part, at sign, domain; anything shaped like an address is hidden, valid or not.
_EMAIL = re.compile(r"[^\s@<>()\[\]\"',;:]{1,64}@[^\s@<>()\[\]\"',;:]{1,255}")

_MOST_LOOKS = 2_000_000
"""Limit of characters times values to compare, some hundredths of a second. An agent
chooses both, and blocks all others meanwhile.
"""

_NETWORKS = range(2, 7)
_SHORTEST = 4
"""Shorter values occur in many unrelated words."""


def without_reviewers(item: Item) -> Item:
    """Return an item for an agent that must not know who decided."""
    return item.with_(
        votes=tuple(one.with_(by=SOMEBODY) for one in item.votes),
        observations=tuple(one.with_(by=SOMEBODY) for one in item.observations),
        decision=item.decision and item.decision.with_(by=SOMEBODY),
        edit=item.edit and item.edit.with_(by=SOMEBODY),
    )


def with_hidden_words(approval: Approval, kinds: Collection[PrivateData]) -> Approval:
    """Return a new approval whose texts hide private data."""
    written = [approval.says, approval.task]
    of_items = ((one.agent_description, one.evidence) for one in approval.items)
    if not any((*written, *(text for texts in of_items for text in texts))):
        return approval
    values = _values(approval.items)
    items = [
        item.with_(
            agent_description=_kept(item.agent_description, kinds, values),
            evidence=tuple(
                one.with_(**{name: _kept(text, kinds, values) for name, text in one})
                for one in item.evidence
            ),
        )
        for item in approval.items
    ]
    says, task = (_kept(text, kinds, values) for text in written)
    return approval.with_(says=says, task=task, items=tuple(items))


def with_hidden_summary(
    result: Result, item: Item, kinds: Collection[PrivateData]
) -> Result:
    """Return a result whose summary hides private data."""
    if not result.summary:
        return result
    hidden = _kept(result.summary, kinds, _values([item]))
    return result if hidden == result.summary else result.with_(summary=hidden)


def _kept(text: str, kinds: Collection[PrivateData], values: frozenset[str]) -> str:
    """Return a text without private data, cut if it is very long."""
    if len(text) <= MAX_WORDS:
        return without_private(text, kinds, values)
    # A cut must not leave half of a private value. So search beyond the cut, and drop
    # the end of the searched part, where a value may continue.
    around = max([_AROUND, *map(len, values)])
    looked_at = text[: MAX_WORDS + around]
    hidden = without_private(looked_at, kinds, values)
    left = len(hidden) if looked_at == text else len(hidden) - around
    kept = hidden[: max(0, min(MAX_WORDS, left))]
    return f"{kept}… ({len(text) - MAX_WORDS} more characters)"


def _values(items: Iterable[Item]) -> frozenset[str]:
    """Return the values that cards hide, in the requested and the current arguments."""
    found: set[str] = set()
    for item in items:
        if item.redact:
            found |= private_values(action_args(item.requested), item.redact)
            found |= private_values(item.args, item.redact)
    return frozenset(found)


def private_values(args: JsonObject, paths: Iterable[str]) -> frozenset[str]:
    """Return the texts and numbers that cards hide in arguments."""
    shown = redacted(args, tuple(paths))
    found = (text for name in args for text in _hidden(args[name], shown[name]))
    return frozenset(text for text in found if len(text) >= _SHORTEST)


def without_private(
    text: str, kinds: Collection[PrivateData], values: Iterable[str] = ()
) -> str:
    """Return a text with private data replaced.

    Args:
        text: of an agent or a tool.
        kinds: data to hide by its form.
        values: texts to hide wherever they occur, in any case. If there are too many
            for a long text, all of it is hidden.
    """
    if not text:
        return text
    # Longest first: one value may be part of another. One pass: the replacement of one
    # value is not searched for another.
    if found := sorted(values, key=len, reverse=True):
        if len(text) * len(found) > _MOST_LOOKS:
            return HIDDEN
        pattern = "|".join(map(re.escape, found))
        text = re.sub(pattern, HIDDEN, text, flags=re.IGNORECASE)
    if PrivateData.CARD_NUMBERS in kinds:
        text = _DIGITS.sub(_without_card, text)
    if PrivateData.EMAIL_ADDRESSES in kinds:
        text = _EMAIL.sub("(e-mail address hidden)", text)
    return text


def _without_card(found: re.Match[str]) -> str:
    """Return a run of digits without the groups that may be a card number."""
    text = found[0]
    places = [at for at, one in enumerate(text) if one.isdigit()]
    digits = [int(text[at]) for at in places]
    shown, at, done = "", 0, 0
    while at < len(digits):
        # Other numbers may be next to it, such as the expiry date. Look only at edges
        # of groups, so that no part of a longer number is taken for a card.
        size = _card_size(places, digits, at) if _is_edge(places, at) else 0
        if size:
            shown += text[done : places[at]] + "(card number hidden)"
            done = places[at + size - 1] + 1
        at += size or 1
    return shown + text[done:]


def _card_size(places: list[int], digits: list[int], at: int) -> int:
    """Return the length of the card number that begins here; 0 for none."""
    # Check the edge first: the sum of digits costs more.
    for size in _CARD_LENGTHS:
        end = at + size
        is_group = end <= len(places) and _is_edge(places, end)
        if is_group and is_card_number(digits[at:end]):
            return size
    return 0


def _is_edge(places: list[int], at: int) -> bool:
    """Return True if a digit does not directly follow the one before it."""
    return at in (0, len(places)) or places[at] - places[at - 1] > 1


def is_card_number(digits: Sequence[int]) -> bool:
    """Return True if these can be the digits of a payment card."""
    # Payment networks begin with 2 to 6; the last digit checks the others (Luhn).
    if digits[0] not in _NETWORKS:
        return False
    doubled = (sum(divmod(2 * one, 10)) for one in digits[-2::-2])
    return (sum(digits[::-2]) + sum(doubled)) % 10 == 0


def _hidden(value: JsonValue, shown: JsonValue) -> Iterator[str]:
    """Yield the texts of a value that are not shown."""
    if shown == HIDDEN:
        yield from _texts(value)
    elif isinstance(value, dict) and isinstance(shown, dict):
        for name in value:
            yield from _hidden(value[name], shown[name])
    elif isinstance(value, list) and isinstance(shown, list):
        for one, other in zip(value, shown, strict=True):
            yield from _hidden(one, other)


def _texts(value: JsonValue) -> Iterator[str]:
    match value:
        case bool() | None:
            return
        case dict():
            for one in value.values():
                yield from _texts(one)
        case list():
            for one in value:
                yield from _texts(one)
        case _:
            yield str(value)
