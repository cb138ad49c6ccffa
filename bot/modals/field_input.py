"""Build the Block Kit inputs of one argument, filled with its present value."""

from __future__ import annotations

from typing import assert_never, cast

from pydantic import JsonValue

from keyturn.bot.blocks import (
    Block,
    date_input,
    input_block,
    moment_input,
    multi_select,
    number_input,
    option,
    radio_buttons,
    select,
    text_input,
    time_input,
)
from keyturn.bot.ids import VALUE
from keyturn.bot.modals.form_fields import Field
from keyturn.bot.modals.schema import (
    ABSENT,
    Kind,
    clock_of,
    is_same,
    json_text,
    number_text,
    option_labels,
    path_label,
    seconds_of,
    zone_of,
)
from keyturn.bot.text import fit, label, untrusted
from keyturn.sandbox.blockkit.limits import TYPED

UNSET, NULL = "unset", "null"
"""The values of the choices that stand for "not set" and for null."""

TRUE, FALSE = "true", "false"

RawValue = str | tuple[str, ...] | None
"""What the state of an input holds; None for an empty one."""

_SEVERAL = 2
_LABEL = 150
_HINT = 200


def field_inputs(field: Field) -> list[Block]:
    """Return the inputs of an editable field, prefilled with what stands there.

    Only a long text has several, one for each of its parts.
    """
    name, hint = path_label(field.path), _hint(field)
    texts = [part.text for part in field.parts]
    if len(texts) < _SEVERAL:
        return [_input(field, field.block_id, name, _element(field), hint)]
    return [
        _input(
            field,
            field.part_id(place),
            f"{fit(name, _LABEL - 20)} ({place + 1} of {len(texts)})",
            text_input(VALUE, initial=text, multiline=True),
            hint if place == 0 else "",
        )
        for place, text in enumerate(texts)
    ]


def _input(field: Field, block_id: str, name: str, element: Block, hint: str) -> Block:
    return input_block(
        untrusted(fit(name, _LABEL)),
        element,
        block_id=block_id,
        hint=untrusted(fit(hint, _HINT)) if hint else None,
        # Of a text in parts, each may be emptied; all of them is found out later.
        optional=can_be_empty(field) or len(field.parts) >= _SEVERAL,
    )


def _hint(field: Field) -> str:
    """Say what the input alone does not: how it is read, and what emptying it means."""
    kind, one = field.plan.kind, field.original
    text = one if isinstance(one, str) else ""
    words = ""
    if kind is Kind.LINES:
        words = "One on each line."
    elif kind is Kind.MOMENT:
        words = f"Shown in your own time zone, sent in {zone_of(text) or 'UTC'}."
    elif kind is Kind.TIME and zone_of(text):
        words = f"In {zone_of(text)}, not in your own time zone."
    is_menu = kind in {Kind.FLAG, Kind.CHOICE}
    # An empty text and null are two things to a tool.
    empty = "Empty means null." if field.plan.is_nullable and not is_menu else ""
    title = f"{field.title}." if field.title else ""
    return " ".join(filter(None, [title, words, empty, field.plan.hint]))


def can_be_empty(field: Field) -> bool:
    """Return whether the input may be left empty; a menu then says what for.

    An empty text or list that stands there now has to be able to stay.
    """
    is_optional = field.plan.is_nullable or not field.is_required
    # By equality: no other JSON value equals one of these two.
    return is_optional or field.plan.kind is Kind.LINES or field.original in ("", [])


def initial_value(field: Field) -> RawValue:
    """Return what Slack sends back for this field when nobody touched it."""
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
    """Return whether what stands there is shown as an empty input."""
    value, kind = field.original, field.plan.kind
    if value is None:
        return field.plan.is_nullable
    is_list = kind in {Kind.CHOICES, Kind.LINES}
    return (kind is Kind.TEXT and value == "") or (is_list and value == [])


def _empty_choice(field: Field) -> str | None:
    """Return what a menu shows for a value that is null or not there."""
    if field.original is None:
        return NULL
    return None if field.is_required else UNSET


def _written(value: JsonValue, kind: Kind) -> str | None:
    match value:
        case _ if kind is Kind.JSON:
            return json_text(value, max_length=TYPED)
        case list() if kind is Kind.LINES:
            return "\n".join(map(str, value))
        case str() if kind is Kind.TIME:
            return clock_of(value)
        case str() if kind is Kind.MOMENT:
            return str(seconds_of(value))
        case str():
            return value
        case _:
            return None


def _option_index(value: JsonValue, field: Field) -> str:
    options = field.plan.options
    return str(next(at for at, option in enumerate(options) if is_same(value, option)))


def _element(field: Field) -> Block:  # noqa: C901, PLR0911 - one return a kind
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
            return date_input(VALUE, initial=one)
        case Kind.TIME:
            return time_input(VALUE, initial=one)
        case Kind.MOMENT:
            return moment_input(VALUE, initial=int(one) if one else None)
        case Kind.CHOICE:
            return select(VALUE, _options(field), initial=one)
        case Kind.CHOICES:
            many = before if isinstance(before, tuple) else ()
            return multi_select(VALUE, _options(field), initial=many)
        case Kind.JSON | Kind.FIXED:
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
    """Return the choices for no value: Slack cannot clear a menu that has one."""
    unset = [] if field.is_required else [option(label("(not set)"), UNSET)]
    null = [option(label("(null)"), NULL)] if field.plan.is_nullable else []
    return [*unset, *null]


def _max_length(field: Field, initial: str | None) -> int:
    limit = field.plan.max_length or TYPED
    # The text that stands there now must fit, even where the schema's limit was lowered
    # since: Slack refuses an initial value that is too long.
    return max(1, min(TYPED, max(limit, len(initial or ""))))
