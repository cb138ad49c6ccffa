"""Build the Block Kit input of one argument, filled with its present value."""

from __future__ import annotations

from typing import assert_never, cast

from pydantic import JsonValue

from twokey.bot.ids import VALUE
from twokey.bot.inputs import (
    date_input,
    input_block,
    multi_select,
    number_input,
    radio_buttons,
    select,
    text_input,
)
from twokey.bot.modals.form_fields import Field
from twokey.bot.modals.schema import ABSENT, Kind, is_same
from twokey.bot.modals.texts import json_text, number_text, option_labels, path_label
from twokey.bot.objects import Block, option
from twokey.bot.text import fit
from twokey.bot.text_types import label, untrusted
from twokey.sandbox.blockkit.limits import TYPED

UNSET = "unset"
"""The value of the choice that stands for "not set"."""

TRUE, FALSE = "true", "false"

RawValue = str | tuple[str, ...] | None
"""What the state of an input holds; None for an empty one."""

_LABEL = 150
_HINT = 200


def field_input(field: Field) -> Block:
    """Return the input block of an editable field, prefilled with what stands there."""
    return input_block(
        untrusted(fit(path_label(field.path), _LABEL)),
        _element(field),
        block_id=field.block_id,
        hint=untrusted(fit(field.plan.hint, _HINT)) if field.plan.hint else None,
        optional=can_be_empty(field),
    )


def can_be_empty(field: Field) -> bool:
    """Return whether the input may be left empty; a menu then offers "not set".

    Slack cannot clear a single choice. An empty text or list that stands there now has
    to be able to stay.
    """
    is_optional = field.plan.is_nullable or not field.is_required
    # By equality: no other JSON value equals one of these two.
    return is_optional or field.original in ("", [])


def initial_value(field: Field) -> RawValue:
    """Return what Slack sends back for this field when nobody touched it."""
    value, kind = field.original, field.plan.kind
    if value is ABSENT or is_shown_empty(field):
        is_menu = kind in {Kind.FLAG, Kind.CHOICE}
        return UNSET if is_menu and can_be_empty(field) else None
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
    return (kind is Kind.TEXT and value == "") or (kind is Kind.CHOICES and value == [])


def _written(value: JsonValue, kind: Kind) -> str | None:
    if kind is Kind.JSON:
        return json_text(value, max_length=TYPED)
    return value if isinstance(value, str) else None


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
        case Kind.DATE:
            return date_input(VALUE, initial=one)
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
    if can_be_empty(field):
        return select(VALUE, [*choices, _unset()], initial=one)
    return radio_buttons(VALUE, choices, initial=one)


def _options(field: Field) -> list[Block]:
    choices = [
        option(untrusted(words), str(place))
        for place, words in enumerate(option_labels(field.plan.options))
    ]
    is_menu_of_one = field.plan.kind is Kind.CHOICE
    return [*choices, _unset()] if is_menu_of_one and can_be_empty(field) else choices


def _unset() -> Block:
    return option(label("(not set)"), UNSET)


def _max_length(field: Field, initial: str | None) -> int:
    limit = field.plan.max_length or TYPED
    # The text that stands there now must fit, even where the schema's limit was lowered
    # since: Slack refuses an initial value that is too long.
    return max(1, min(TYPED, max(limit, len(initial or ""))))
