"""Flatten a call's arguments into form fields, nested objects by path.

Every argument is one field or part of one, and a read-only field says why. The fields
depend on nothing but the item, so they are the same when the form is submitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import JsonValue

from keyturn.bot.cards.listing import title_of
from keyturn.bot.modals.schema import (
    ABSENT,
    Absent,
    Kind,
    Plan,
    Value,
    is_carried,
    is_plain,
    json_text,
    members,
    plan,
    required,
    resolved,
    slack_length,
)
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.work import TooMuchWork, one_budget, spend
from keyturn.sandbox.blockkit.limits import TYPED

PART = 2_000
"""How long a part is at most, as Slack counts: there is room to add to each of them."""

# A longer word, as in text of a language without blanks, is cut itself.
_WORD = re.compile(r"(\s*)(\S{1,500})")


class Part(NamedTuple):
    """A part of a text, and the blanks that stand before it."""

    before: str
    text: str


def parts_of(text: str) -> tuple[Part, ...]:
    """Return the parts of a text without blanks at its ends; none if it has no parts.

    Slack lets nobody type more than 3,000 characters into one input, and may drop
    blanks at the ends of what it carries. So a text is cut at blanks, which are put
    back when its parts are joined, or inside a word that is very long. A text that
    cannot be cut so that each part comes back as it went is not split at all.

    A text that one input holds is one part. The same text always gives the same parts.
    """
    if slack_length(text) <= TYPED:
        return (Part("", text),)
    words = [Part(*match.groups()) for match in _WORD.finditer(text)]
    found: list[Part] = []
    while words:
        count = _fitting(words)
        first, *more = words[:count]
        found.append(Part(first.before, first.text + "".join(map("".join, more))))
        words = words[count:]
    can_be_typed = all(
        slack_length(part.text) <= TYPED and is_plain(part.text) for part in found
    )
    return tuple(found) if can_be_typed else ()


def joined(parts: Sequence[Part], typed: Iterable[str]) -> str:
    """Join what was typed for each part; an emptied part leaves no gap.

    A part that nobody touched keeps its exact text beside one that was changed.
    """
    text = ""
    for part, found in zip(parts, typed, strict=True):
        words = part.text if is_carried(part.text, found) else found
        text += (part.before if text else "") + words if words else ""
    return text


def _fitting(words: Sequence[Part]) -> int:
    """Return how many words make a part: up to a line break if one is near."""
    size, line_end = 0, 0
    for place, (before, word) in enumerate(words):
        if place and size > PART // 2 and "\n" in before:
            line_end = place
        size += slack_length(before) + slack_length(word)
        if place and size > PART:
            return line_end or place
    return len(words)


MAX_DEPTH = 4
MAX_FIELDS = 60

HIDDEN = "hidden by policy"
TOO_LONG = "longer than 3,000 characters, the most that one input of Slack holds"
TOO_MANY = "the form is full"

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """One value of the form.

    Attributes:
        number: its place, from 0; part of its block id.
        path: the keys that lead to it.
        plan: how it is edited.
        original: what stands there now.
        is_required: whether its object must have it.
        title: what the policy's schema calls it, and its unit; "" without both.
        why_fixed: why it cannot be edited; "" when it can.
    """

    number: int
    path: Path
    plan: Plan
    original: Value
    is_required: bool
    title: str = ""
    why_fixed: str = ""

    @property
    def block_id(self) -> str:
        """Return the id of its input block.

        It is the same when the form is shown again, so Slack keeps what was typed.
        """
        return f"field:{self.number}"

    def part_id(self, place: int) -> str:
        """Return the id of the input block of one of its parts, from 0."""
        return f"{self.block_id}.{place}" if place else self.block_id

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the parts of its text, each with an input; none without text."""
        is_text = self.plan.kind is Kind.LONG_TEXT and isinstance(self.original, str)
        return parts_of(str(self.original)) if is_text else ()

    @property
    def is_editable(self) -> bool:
        """Return whether it has an input."""
        return not self.why_fixed

    def fixed(self, why: str) -> Field:
        """Return the same field without an input."""
        return replace(self, plan=Plan(Kind.FIXED), why_fixed=why)


def lay_out(item: Item) -> tuple[Field, ...]:
    """Return a field for each argument of an item, declared ones first.

    Redacted values are never editable: a form would show them, and an edit of what
    nobody sees is no decision. Of `MAX_FIELDS` on, the rest stays as it is. All of it
    stays where the schema takes too long to look through.
    """
    redact = redacted_paths(item)
    try:
        with one_budget():
            return _laid_out(item, redact)
    except TooMuchWork:
        return tuple(
            Field(number, (name,), Plan(Kind.FIXED), value, is_required=True).fixed(
                HIDDEN if is_redacted((name,), redact) else TOO_MANY
            )
            for number, (name, value) in enumerate(item.args.items())
        )


def _laid_out(item: Item, redact: tuple[Path, ...]) -> tuple[Field, ...]:
    schema = item.args_schema or {}
    fields: list[Field] = []
    count = 0
    for found in _walk(schema, item.args, (), schema):
        owned = found if item.has_policy_schema else _marked(found)
        field = replace(owned, number=len(fields))
        if is_redacted(field.path, redact):
            # A hidden argument that is not there has no line: even that it could be
            # there need not be told.
            if field.original is ABSENT:
                continue
            field = field.fixed(HIDDEN)
        elif not _has_room(field):
            field = field.fixed(TOO_LONG)
        elif count + _inputs(field) > MAX_FIELDS:
            field = field.fixed(TOO_MANY)
        # Only inputs count against the bound, so fields that are shown as fixed take no
        # place.
        count += _inputs(field) if field.is_editable else 0
        fields.append(field)
    return tuple(fields)


def _marked(field: Field) -> Field:
    """Return a field of the agent's schema with its words marked, without a title."""
    plan = field.plan
    words = " ".join(plan.hint.split())
    words = f"Agent says (unverified): {words}" if words else ""
    if plan.options:
        words = f"The choices are the agent's words (unverified). {words}".rstrip()
    return replace(field, title="", plan=replace(plan, hint=words))


def is_redacted(path: Path, redact: tuple[Path, ...]) -> bool:
    """Return whether a place is hidden by policy, lies below one, or holds one."""
    return any(
        # Not strict on purpose: the shorter path decides, so a place above a hidden one
        # is hidden as well. Its form would show what is inside.
        all(token in {"*", key} for token, key in zip(hidden, path, strict=False))
        for hidden in redact
    )


def redacted_paths(item: Item) -> tuple[Path, ...]:
    """Return the item's redacted places as keys."""
    return tuple(tuple(path.removeprefix("args.").split(".")) for path in item.redact)


def _walk(
    schema: JsonValue, value: JsonObject, path: Path, root: JsonObject
) -> Iterator[Field]:
    declared = members(schema, value, root) or {}
    needed = required(schema, value, root)
    # Sorted: a set has another order in each process, and block ids are numbered by it.
    # Slack keeps what was typed by block id.
    names = [*declared, *sorted(value.keys() - declared.keys())]
    for name in names:
        spend(1)
        node, here = declared.get(name), value.get(name, ABSENT)
        below = (*path, name)
        if _is_nested(node, here, below, root):
            yield from _walk(node, _object(here), below, root)
            continue
        yield Field(
            number=0,
            path=below,
            plan=plan(node, here, root),
            original=here,
            is_required=name in needed,
            title=title_of(name, node),
        )


def _is_nested(schema: JsonValue, value: Value, path: Path, root: JsonObject) -> bool:
    """Return whether an object is shown member by member."""
    if not isinstance(value, dict) or len(path) >= MAX_DEPTH:
        return False
    node = resolved(schema, root)
    return not node.keys() & {"allOf", "not", "if"} and bool(
        members(schema, value, root)
    )


def _object(value: Value) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _inputs(field: Field) -> int:
    return max(1, len(field.parts))


def _has_room(field: Field) -> bool:
    value = field.original
    if isinstance(value, Absent):
        return True
    if field.plan.kind is Kind.LONG_TEXT:
        return bool(field.parts)
    if field.plan.kind is Kind.LINES and isinstance(value, list):
        return slack_length("\n".join(map(str, value))) <= TYPED
    if field.plan.kind is Kind.JSON:
        return json_text(value, max_length=TYPED) is not None
    return True
