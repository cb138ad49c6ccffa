"""Parse what a person entered in an input into a JSON value.

An unchanged input keeps the exact value it was made from, even if Slack altered its
text. Numbers are read as decimals and refused when a
JSON number could not hold them exactly; none of them passes through a float unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import cast

from pydantic import JsonValue

from keyturn.bot.modals.form_fields import (
    FALSE,
    NULL,
    TRUE,
    UNSET,
    Field,
    RawValue,
    initial_value,
)
from keyturn.bot.modals.schema import (
    ABSENT,
    Kind,
    Value,
    is_carried,
    moment_text,
    time_text,
)
from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import strict_json
from keyturn.sandbox.blockkit.formats import clock, day, number

_MAX_DIGITS = 400


class BadInput(ValueError):
    """A person typed what this argument cannot be; the text is a sentence for them."""


def raw_value(state: Mapping[str, object], kind: Kind) -> RawValue:
    """Return what the state of one input holds.

    Raises:
        BadInput: when Slack sent another shape than this input has.
    """
    match kind:
        case Kind.FLAG | Kind.CHOICE:
            return _option(state.get("selected_option"))
        case Kind.CHOICES:
            return _options(state.get("selected_options")) or None
        case Kind.DATE:
            return _text(state.get("selected_date"))
        case Kind.TIME:
            return _text(state.get("selected_time"))
        case Kind.MOMENT:
            return _seconds(state.get("selected_date_time"))
        case _:
            return _text(state.get("value"))


def parsed_value(field: Field, found: RawValue) -> Value:
    """Return the value that a field has after the form was submitted.

    Raises:
        BadInput: says what is wrong, without repeating it.
    """
    # First of all: what nobody touched keeps its exact value, whatever the rules below
    # would make of it.
    if _is_untouched(field, found):
        return field.original
    is_menu = field.plan.kind in {Kind.FLAG, Kind.CHOICE}
    if found is None or (is_menu and found in {UNSET, NULL}):
        return _emptied(field, found)
    if isinstance(found, tuple):
        return _chosen(field, found)
    read = _READERS.get(field.plan.kind)
    return read(field, found) if read else found


def _is_untouched(field: Field, found: RawValue) -> bool:
    before = initial_value(field)
    if isinstance(before, tuple) and isinstance(found, tuple):
        # Slack need not send choices in the order in which the value had them.
        return set(before) == set(found)
    if isinstance(before, str) and isinstance(found, str):
        return is_carried(before, found) or _is_same_number(field, found)
    return before == found


def _is_same_number(field: Field, found: str) -> bool:
    if field.plan.kind not in {Kind.INTEGER, Kind.NUMBER}:
        return False
    before = initial_value(field)
    # Checked before it is converted: the text comes from a client, of any length.
    if number(found) is not None or len(found) > _MAX_DIGITS:
        return False
    return isinstance(before, str) and Decimal(before) == Decimal(found)


def _emptied(field: Field, found: str | None) -> Value:
    """Return null, no value or an empty list; which of them, the form says."""
    if field.plan.is_nullable and found != UNSET:
        return None
    if not field.is_required and found != NULL:
        return ABSENT
    if field.plan.kind in {Kind.CHOICES, Kind.LINES}:
        return []
    raise BadInput("A value is needed here.")


def _whole_number(_: Field, text: str) -> int | float:
    return _number(text, is_whole=True)


def _any_number(_: Field, text: str) -> int | float:
    return _number(text, is_whole=False)


def _number(text: str, *, is_whole: bool) -> int | float:
    try:
        exact = Decimal(text.strip())
    except InvalidOperation:
        raise BadInput("Please write a number, such as 449.50.") from None
    if not exact.is_finite() or len(text) > _MAX_DIGITS:
        raise BadInput("Please write a number, such as 449.50.")
    # 2**53 - 1: beyond it a JSON number is not exact in every language that reads it.
    if abs(exact) > strict_json.MAX_INTEGER:
        raise BadInput("This number is too large to be kept exactly.")
    if exact == exact.to_integral_value():
        return int(exact)
    if is_whole:
        raise BadInput("Please write a whole number.")
    rounded = float(exact)
    # The shortest text of the float has to be what was typed, or a reviewer would
    # approve one number and another would run.
    if Decimal(repr(rounded)) != exact:
        raise BadInput("This number has more digits than can be kept exactly.")
    return rounded


def _flag(_: Field, text: str) -> bool:
    if text not in {TRUE, FALSE}:
        raise BadInput("Please choose yes or no.")
    return text == TRUE


def _date(_: Field, text: str) -> str:
    if day(text) is not None:
        raise BadInput("Please choose a date.")
    return text


def _time(field: Field, text: str) -> str:
    if clock(text) is not None:
        raise BadInput("Please choose a time.")
    return time_text(text, _like(field))


def _moment(field: Field, text: str) -> str:
    try:
        return moment_text(int(text), _like(field))
    except (ValueError, OverflowError):
        raise BadInput("Please choose a day and a time.") from None


def _lines(_: Field, text: str) -> JsonValue:
    lines = text.replace("\r\n", "\n").split("\n")
    return [line.strip() for line in lines if line.strip()]


def _like(field: Field) -> str | None:
    return field.original if isinstance(field.original, str) else None


def _json(_: Field, text: str) -> JsonValue:
    try:
        return strict_json.parse(text)
    except BadJson as error:
        place = f" at {error.pointer}" if error.pointer else ""
        raise BadInput(
            f'This is not JSON{place}: {error.problem}. Write text in quotes: "text".'
        ) from None


def _chosen(field: Field, found: tuple[str, ...]) -> JsonValue:
    return [_at(field, one) for one in found]


def _at(field: Field, place: str) -> JsonValue:
    options = field.plan.options
    # The index comes from the client. A negative one would choose from the end of the
    # list.
    if not (place.isascii() and place.isdigit() and int(place) < len(options)):
        raise BadInput("Please choose one of the options.")
    return options[int(place)]


def _text(found: object) -> str | None:
    if found is None or found == "":
        return None
    if not isinstance(found, str):
        raise BadInput("Slack did not send this value; please submit again.")
    return found


def _seconds(found: object) -> str | None:
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int):
        raise BadInput("Slack did not send this value; please submit again.")
    return str(found)


def _option(found: object) -> str | None:
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise BadInput("Slack did not send this choice; please submit again.")
    return _text(cast("Mapping[str, object]", found).get("value"))


def _options(found: object) -> tuple[str, ...]:
    if found is None:
        return ()
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise BadInput("Slack did not send these choices; please submit again.")
    values = [_option(one) for one in cast("Sequence[object]", found)]
    return tuple(value for value in values if value is not None)


_READERS: dict[Kind, Callable[[Field, str], Value]] = {
    Kind.INTEGER: _whole_number,
    Kind.NUMBER: _any_number,
    Kind.FLAG: _flag,
    Kind.CHOICE: _at,
    Kind.LINES: _lines,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.MOMENT: _moment,
    Kind.JSON: _json,
}
"""How the text of an input is read; any other is the value itself."""
