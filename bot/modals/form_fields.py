"""Flatten a call's arguments into form fields, and build their inputs.

A field of a nested object is named by its path. Every argument is one field or part of
one, and a read-only field has a reason. The fields depend only on the item, so they are
the same when the form is submitted. Each input is filled with its current value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import assert_never, cast

from pydantic import JsonValue

from keyturn.bot.blocks import (
    Block,
    block_object,
    input_block,
    multi_select,
    number_input,
    option,
    radio_buttons,
    select,
    text_input,
)
from keyturn.bot.cards.listing import title_of
from keyturn.bot.ids import VALUE
from keyturn.bot.modals.schema import (
    ABSENT,
    Absent,
    Kind,
    Plan,
    Value,
    is_same,
    json_text,
    members,
    number_text,
    option_labels,
    path_label,
    plan,
    required,
    resolved,
    seconds_of,
    slack_length,
    zone_of,
)
from keyturn.bot.text import LINE, fit, label, untrusted
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.work import TooMuchWork, one_budget, spend
from keyturn.sandbox.blockkit.limits import TYPED

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
        plan: its kind of input.
        original: its current value.
        is_required: whether its object must have it.
        title: its title and unit in the policy's schema; "" without both.
        why_fixed: why it cannot be edited; "" if it can.
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

        It stays the same when the form is shown again, so Slack keeps the input.
        """
        return f"field:{self.number}"

    @property
    def is_editable(self) -> bool:
        """Return whether it has an input."""
        return not self.why_fixed

    def fixed(self, why: str) -> Field:
        """Return the same field without an input."""
        return replace(self, why_fixed=why)


def lay_out(item: Item) -> tuple[Field, ...]:
    """Return a field for each argument of an item, declared ones first.

    Redacted values are never editable: a form would show them, and people cannot decide
    on an edit of hidden values. Fields beyond `MAX_FIELDS` are read-only. If the schema
    takes too long to evaluate, all fields are.
    """
    redact = redacted_paths(item)
    try:
        with one_budget():
            return _laid_out(item, redact)
    except TooMuchWork:
        return tuple(
            Field(number, (name,), Plan(Kind.JSON), value, is_required=True).fixed(
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
            # An absent hidden argument has no line: not even its possible existence is
            # revealed.
            if field.original is ABSENT:
                continue
            field = field.fixed(HIDDEN)
        elif not _has_room(field):
            field = field.fixed(TOO_LONG)
        elif count == MAX_FIELDS:
            field = field.fixed(TOO_MANY)
        # Only inputs count against the bound; read-only fields do not.
        count += field.is_editable
        fields.append(field)
    return tuple(fields)


def _marked(field: Field) -> Field:
    """Return a field of the agent's schema, marked as unverified, without a title."""
    plan = field.plan
    words = " ".join(plan.hint.split())
    words = f"Agent says (unverified): {words}" if words else ""
    if plan.options:
        words = f"The choices are the agent's words (unverified). {words}".rstrip()
    return replace(field, title="", plan=replace(plan, hint=words))


def is_redacted(path: Path, redact: tuple[Path, ...]) -> bool:
    """Return whether policy hides a place, a place above it or one inside it."""
    return any(
        # Not strict on purpose: the shorter path decides, so a place above a hidden one
        # is hidden as well. Its form would show its content.
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
    # Sorted: the order of a set varies by process, and the numbers of block ids depend
    # on it. Slack keeps inputs by block id.
    names = [*declared, *sorted(value.keys() - declared.keys())]
    for name in names:
        spend(1)
        node, here = declared.get(name), value.get(name, ABSENT)
        below = (*path, name)
        if _is_nested(node, here, below, root):
            inner = here if isinstance(here, dict) else {}
            yield from _walk(node, inner, below, root)
            continue
        yield Field(
            number=0,
            path=below,
            plan=plan(node, here, root),
            original=here,
            # Without a schema, nothing is known to be optional.
            is_required=name in needed or not root,
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


def _has_room(field: Field) -> bool:
    value = field.original
    if isinstance(value, Absent):
        return True
    if field.plan.kind is Kind.JSON:
        return json_text(value, max_length=TYPED) is not None
    text = "\n".join(map(str, value)) if isinstance(value, list) else str(value)
    return field.plan.kind not in _TYPED or slack_length(text) <= TYPED


_TYPED = {Kind.TEXT, Kind.LONG_TEXT, Kind.LINES}


UNSET, NULL = "unset", "null"
"""Values of the options for "not set" and for null."""

TRUE, FALSE = "true", "false"

RawValue = str | tuple[str, ...] | None
"""The state of an input; None for an empty one."""


def field_input(field: Field) -> Block:
    """Return the input of an editable field, prefilled with its current value."""
    hint = _hint(field)
    return input_block(
        untrusted(fit(path_label(field.path), LINE)),
        _element(field),
        block_id=field.block_id,
        hint=untrusted(fit(hint, LINE)) if hint else None,
        optional=can_be_empty(field),
    )


def _hint(field: Field) -> str:
    """Describe the input's format, and the meaning of an empty one."""
    kind, one = field.plan.kind, field.original
    text = one if isinstance(one, str) else ""
    words = ""
    if kind is Kind.LINES:
        words = "One on each line."
    elif kind is Kind.MOMENT:
        words = f"Shown in your own time zone, sent in {zone_of(text) or 'UTC'}."
    is_menu = kind in {Kind.FLAG, Kind.CHOICE}
    # An empty text and null differ for a tool.
    empty = "Empty means null." if field.plan.is_nullable and not is_menu else ""
    title = f"{field.title}." if field.title else ""
    return " ".join(filter(None, [title, words, empty, field.plan.hint]))


def can_be_empty(field: Field) -> bool:
    """Return whether the input may be empty; a menu then names the meaning.

    A current empty text or list must be allowed to stay.
    """
    is_optional = field.plan.is_nullable or not field.is_required
    # By equality: no other JSON value equals one of these two.
    return is_optional or field.plan.kind is Kind.LINES or field.original in ("", [])


def initial_value(field: Field) -> RawValue:
    """Return Slack's value for this field if it is untouched."""
    value, kind = field.original, field.plan.kind
    if value is ABSENT or is_shown_empty(field):
        return _empty_choice(field) if kind in {Kind.FLAG, Kind.CHOICE} else None
    match kind:
        case Kind.INTEGER | Kind.NUMBER:
            return number_text(cast("float", value))
        case Kind.FLAG:
            return TRUE if value is True else FALSE
        case Kind.CHOICE:
            return _option_index(value, field)
        case Kind.CHOICES:
            return tuple(
                _option_index(one, field) for one in cast("list[JsonValue]", value)
            )
        case _:
            return _written(value, kind)


def is_shown_empty(field: Field) -> bool:
    """Return whether the current value is shown as an empty input."""
    value, kind = field.original, field.plan.kind
    if value is None:
        return field.plan.is_nullable
    is_list = kind in {Kind.CHOICES, Kind.LINES}
    return (kind is Kind.TEXT and value == "") or (is_list and value == [])


def _empty_choice(field: Field) -> str | None:
    """Return a menu's value for null or an absent value."""
    if field.original is None:
        return NULL
    return None if field.is_required else UNSET


def _written(value: JsonValue, kind: Kind) -> str | None:
    match value:
        case _ if kind is Kind.JSON:
            return json_text(value, max_length=TYPED)
        case list() if kind is Kind.LINES:
            return "\n".join(map(str, value))
        case str() if kind is Kind.MOMENT:
            return str(seconds_of(value))
        case str():
            return value
        case _:
            return None


def _option_index(value: JsonValue, field: Field) -> str:
    options = field.plan.options
    return str(next(at for at, option in enumerate(options) if is_same(value, option)))


def _element(field: Field) -> Block:  # noqa: PLR0911 - one return a kind
    before, kind = initial_value(field), field.plan.kind
    one = before if isinstance(before, str) else None
    match kind:
        case Kind.TEXT | Kind.LONG_TEXT:
            return text_input(
                VALUE,
                initial=one,
                multiline=kind is Kind.LONG_TEXT,
                max_length=_max_length(field, one),
            )
        case Kind.INTEGER | Kind.NUMBER:
            return number_input(VALUE, decimal=kind is Kind.NUMBER, initial=one)
        case Kind.FLAG:
            return _flag(field, one)
        case Kind.LINES:
            return text_input(VALUE, initial=one, multiline=True)
        case Kind.DATE:
            # Dates are ``YYYY-MM-DD``, as Slack returns them.
            return block_object("datepicker", action_id=VALUE, initial_date=one)
        case Kind.MOMENT:
            # A moment is in Unix seconds; Slack shows it in each reader's time zone.
            at = int(one) if one else None
            return block_object("datetimepicker", action_id=VALUE, initial_date_time=at)
        case Kind.CHOICE:
            return select(VALUE, _options(field), initial=one)
        case Kind.CHOICES:
            many = before if isinstance(before, tuple) else ()
            return multi_select(VALUE, _options(field), initial=many)
        case Kind.JSON:
            return text_input(
                VALUE,
                initial=one,
                multiline=True,
                placeholder=label('JSON, for example "text", 12 or [1, 2]'),
            )
        case _:
            assert_never(kind)


def _flag(field: Field, one: str | None) -> Block:
    choices = [option(label("Yes (true)"), TRUE), option(label("No (false)"), FALSE)]
    if empty := _empty_choices(field):
        return select(VALUE, [*choices, *empty], initial=one)
    return radio_buttons(VALUE, choices, initial=one)


def _options(field: Field) -> list[Block]:
    choices = [
        option(untrusted(words), str(place))
        for place, words in enumerate(option_labels(field.plan.options))
    ]
    is_menu_of_one = field.plan.kind is Kind.CHOICE
    return [*choices, *_empty_choices(field)] if is_menu_of_one else choices


def _empty_choices(field: Field) -> list[Block]:
    """Return the options for no value: Slack cannot clear a menu that has one."""
    unset = [] if field.is_required else [option(label("(not set)"), UNSET)]
    null = [option(label("(null)"), NULL)] if field.plan.is_nullable else []
    return [*unset, *null]


def _max_length(field: Field, initial: str | None) -> int:
    limit = field.plan.max_length or TYPED
    # The current text must fit, even if the schema's limit was lowered since: Slack
    # refuses an initial value that is too long.
    return max(1, min(TYPED, max(limit, len(initial or ""))))
