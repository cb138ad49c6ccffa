"""Convert an item's arguments into a form, and a submitted form into arguments.

An unchanged input keeps the exact value it was made from, even if Slack altered its
text. Numbers are read as decimals and refused when a JSON number could not hold them
exactly; none of them passes through a float unseen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from keyturn.bot.blocks import Block, context, section
from keyturn.bot.ids import VALUE, Input
from keyturn.bot.modals.form_fields import (
    FALSE,
    NULL,
    TOO_MANY,
    TRUE,
    UNSET,
    Field,
    Path,
    RawValue,
    field_input,
    initial_value,
    is_redacted,
    lay_out,
    redacted_paths,
)
from keyturn.bot.modals.schema import (
    ABSENT,
    Kind,
    Value,
    is_carried,
    moment_text,
    path_label,
)
from keyturn.bot.text import NAME, fit, label, untrusted
from keyturn.gateway.approvals.editing import as_read
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import digest, strict_json
from keyturn.gateway.protocol.strict_json import JsonObject, tokens_of
from keyturn.sandbox.blockkit.formats import day, number

MAX_BYTES = 200_000
"""Bytes for the inputs, of a view's 250 kB."""

_NO_SCHEMA = label(
    "This tool has no schema, so values can be changed, but not removed."
)
_NAMES = 20
_SENTENCE = 300

State = Mapping[str, Mapping[str, Mapping[str, object]]]
"""A view's ``state.values``: block id, action id, the input's state."""


@dataclass(frozen=True, slots=True)
class Form:
    """The inputs for one item, and their fields."""

    blocks: tuple[Block, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class SubmittedEdit:
    """A submitted edit.

    Attributes:
        args: the arguments.
        changed: whether the arguments differ from the item's.
        reason: the reason of the change, "" for none.
    """

    args: JsonObject
    changed: bool
    reason: str = ""


def build_form(item: Item) -> Form:
    """Return the form for an item; the same item always gives the same form.

    An edit that its tool reads differently is shown as the tool reads it. Arguments
    that do not fit into a view, or may not be shown, stay unchanged and are named below
    the inputs with the reason.
    """
    fields: list[Field] = []
    blocks: list[Block] = []
    left = MAX_BYTES
    for field in lay_out(as_read(item)):
        kept = field
        if field.is_editable:
            block = field_input(field)
            # ASCII escapes make this an upper bound of Slack's count.
            left -= len(json.dumps(block))
            if left > 0:
                blocks.append(block)
            else:
                kept = field.fixed(TOO_MANY)
        fields.append(kept)
    if not blocks:
        blocks.append(section(label("Nothing can be edited here.")))
    elif not item.args_schema:
        blocks.append(context(_NO_SCHEMA))
    blocks += _kept(fields)
    return Form(blocks=tuple(blocks), fields=tuple(fields))


def read_form(item: Item, state: State) -> SubmittedEdit:
    """Return the arguments of a submitted form.

    Untouched inputs keep their exact value, so opening and submitting the form changes
    nothing. Only this reading can fail here;
    `keyturn.gateway.protocol.edits.argument_errors` checks the tool's schema.

    Raises:
        InvalidInputs: a value cannot be read.
    """
    args, errors = as_read(item).args, dict[str, str]()
    for field in build_form(item).fields:
        if not field.is_editable:
            continue
        try:
            found = _held(state, field.block_id, field.plan.kind)
            after = parsed_value(field, found)
        except BadInput as error:
            errors[field.block_id] = str(error)
            continue
        # Identity, not equality: `parsed_value` returns the original object for an
        # untouched input, and 1 == True.
        if after is not field.original:
            args = _with(args, field.path, after)
    if errors:
        raise InvalidInputs(errors)
    # By the canonical bytes that are hashed and run, so "changed" means the same here
    # and in the gateway.
    is_changed = digest.canonical(args) != digest.canonical(item.args)
    return SubmittedEdit(args=args, changed=is_changed)


def errors_by_block(item: Item, errors: Mapping[str, str]) -> dict[str, str]:
    """Map the sentences of `argument_errors` to their inputs.

    A sentence about a place without an input is shown under the reason. A sentence that
    may quote a redacted value is replaced by one that does not.

    Args:
        item: the edited item.
        errors: JSON Pointer into the arguments, or "", to a sentence.
    """
    fields, redact = build_form(item).fields, redacted_paths(item)
    found: dict[str, str] = {}
    for pointer, sentence in errors.items():
        path = tokens_of(pointer)
        field = _nearest(fields, path)
        block_id = field.block_id if field else Input.REASON.value
        is_exact = field is not None and path == field.path
        place = "" if is_exact else path_label(path)
        hidden = is_redacted(path, redact)
        message = "A value hidden by policy does not fit." if hidden else sentence
        text = fit(f"{place}: {message}" if place else message, _SENTENCE)
        found[block_id] = f"{found[block_id]} {text}" if block_id in found else text
    return found


def input_state(state: State, block: Input) -> Mapping[str, object]:
    """Return the state of a fixed input, whose block and action have one id."""
    return state.get(block.value, {}).get(block.value, {})


def text_of(state: State, block: Input) -> str:
    """Return the text of a fixed input, without blanks at its ends."""
    found = input_state(state, block).get("value")
    return found.strip() if isinstance(found, str) else ""


def choice_of(state: State, block: Input) -> str:
    """Return the choice in a fixed menu, "" for none; raises `InvalidInputs`."""
    try:
        return str(raw_value(input_state(state, block), Kind.CHOICE) or "")
    except BadInput as error:
        raise InvalidInputs({block.value: str(error)}) from None


def _held(state: State, block_id: str, kind: Kind) -> RawValue:
    inputs = state.get(block_id)
    held = inputs.get(VALUE) if inputs else None
    if held is None:
        raise BadInput("Slack did not send this value; please submit again.")
    return raw_value(held, kind)


def _with(args: JsonObject, path: Path, after: Value) -> JsonObject:
    """Return a copy in which one place has another value, or is gone."""
    name, *rest = path
    # A copy at each level: the item's own arguments are shared with every other reader
    # of this record.
    changed = dict(args)
    if rest:
        inner = changed.get(name)
        changed[name] = _with(
            inner if isinstance(inner, dict) else {}, tuple(rest), after
        )
    elif after is ABSENT:
        changed.pop(name, None)
    else:
        changed[name] = after
    return changed


def _nearest(fields: tuple[Field, ...], path: Path) -> Field | None:
    """Return the editable field at a place, around it, or else the first inside it."""
    editable = [field for field in fields if field.is_editable]
    # A sentence about a list element belongs to the input with the whole list.
    enclosing = [field for field in editable if path[: len(field.path)] == field.path]
    if enclosing:
        return enclosing[0]
    if not path:
        return None
    inside = [field for field in editable if field.path[: len(path)] == path]
    return inside[0] if inside else None


def _kept(fields: list[Field]) -> list[Block]:
    """Return a line for each reason that prevents an edit."""
    reasons = dict.fromkeys(field.why_fixed for field in fields if field.why_fixed)
    blocks: list[Block] = []
    for reason in reasons:
        names = [path_label(f.path) for f in fields if f.why_fixed == reason]
        shown = ", ".join(fit(name, NAME) for name in names[:_NAMES])
        more = len(names) - _NAMES
        rest = f" and {more} more" if more > 0 else ""
        blocks.append(context(untrusted(f"Stays as it is ({reason}): {shown}{rest}")))
    return blocks


_MAX_DIGITS = 400


class InvalidInputs(Exception):
    """A submitted form cannot be accepted; the person can correct it.

    Attributes:
        errors: a sentence for the person, by the block id of its input.
    """

    def __init__(self, errors: Mapping[str, str]) -> None:
        self.errors = dict(errors)
        super().__init__(", ".join(errors))


class BadInput(ValueError):
    """A typed value that the argument cannot have; the message is for the person."""


class _Chosen(BaseModel):
    value: str


class _Held(BaseModel):
    """The state of an input, as Slack sends it."""

    model_config = ConfigDict(strict=True)

    value: str | None = None
    selected_option: _Chosen | None = None
    selected_options: list[_Chosen] | None = None
    selected_date: str | None = None
    selected_date_time: int | None = None


def raw_value(state: Mapping[str, object], kind: Kind) -> RawValue:
    """Return the content of one input.

    Raises:
        BadInput: Slack sent a shape that does not fit this input.
    """
    try:
        held = _Held.model_validate(state)
    except ValidationError:
        raise BadInput("Slack did not send this value; please submit again.") from None
    match kind:
        case Kind.FLAG | Kind.CHOICE:
            return held.selected_option.value if held.selected_option else None
        case Kind.CHOICES:
            return tuple(one.value for one in held.selected_options or ()) or None
        case Kind.DATE:
            return held.selected_date or None
        case Kind.MOMENT:
            at = held.selected_date_time
            return None if at is None else str(at)
        case _:
            return held.value or None


def parsed_value(field: Field, found: RawValue) -> Value:
    """Return the value of a field after the submission.

    Raises:
        BadInput: describes the problem, without repeating the value.
    """
    # Untouched fields keep their exact value; this rule comes before all others.
    if _is_untouched(field, found):
        return field.original
    is_menu = field.plan.kind in {Kind.FLAG, Kind.CHOICE}
    if found is None or (is_menu and found in {UNSET, NULL}):
        return _emptied(field, found)
    if isinstance(found, tuple):
        return [_at(field, one) for one in found]
    read = _READERS.get(field.plan.kind)
    return read(field, found) if read else found


def _is_untouched(field: Field, found: RawValue) -> bool:
    before = initial_value(field)
    if isinstance(before, tuple) and isinstance(found, tuple):
        # Slack may send choices in another order than the value's.
        return set(before) == set(found)
    if isinstance(before, str) and isinstance(found, str):
        return is_carried(before, found) or _is_same_number(field, found)
    return before == found


def _is_same_number(field: Field, found: str) -> bool:
    if field.plan.kind not in {Kind.INTEGER, Kind.NUMBER}:
        return False
    before = initial_value(field)
    # Checked before conversion: the text comes from a client, and has any length.
    if number(found) is not None or len(found) > _MAX_DIGITS:
        return False
    return isinstance(before, str) and Decimal(before) == Decimal(found)


def _emptied(field: Field, found: str | None) -> Value:
    """Return null, no value or an empty list, depending on the form."""
    if field.plan.is_nullable and found != UNSET:
        return None
    if not field.is_required and found != NULL:
        return ABSENT
    if field.plan.kind in {Kind.CHOICES, Kind.LINES}:
        return []
    raise BadInput("A value is needed here.")


def _number(field: Field, text: str) -> int | float:
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
    if field.plan.kind is Kind.INTEGER:
        raise BadInput("Please write a whole number.")
    rounded = float(exact)
    # The shortest text of the float has to equal the input, or a reviewer would approve
    # one number and another would run.
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


def _moment(field: Field, text: str) -> str:
    try:
        like = field.original if isinstance(field.original, str) else None
        return moment_text(int(text), like)
    except (ValueError, OverflowError):
        raise BadInput("Please choose a day and a time.") from None


def _lines(_: Field, text: str) -> JsonValue:
    lines = text.replace("\r\n", "\n").split("\n")
    return [line.strip() for line in lines if line.strip()]


def _json(_: Field, text: str) -> JsonValue:
    try:
        return strict_json.parse(text)
    except BadJson as error:
        place = f" at {error.pointer}" if error.pointer else ""
        raise BadInput(
            f'This is not JSON{place}: {error.problem}. Write text in quotes: "text".'
        ) from None


def _at(field: Field, place: str) -> JsonValue:
    options = field.plan.options
    # The index comes from the client. A negative one would choose from the end.
    if not (place.isascii() and place.isdigit() and int(place) < len(options)):
        raise BadInput("Please choose one of the options.")
    return options[int(place)]


_READERS: dict[Kind, Callable[[Field, str], Value]] = {
    Kind.INTEGER: _number,
    Kind.NUMBER: _number,
    Kind.FLAG: _flag,
    Kind.CHOICE: _at,
    Kind.LINES: _lines,
    Kind.DATE: _date,
    Kind.MOMENT: _moment,
    Kind.JSON: _json,
}
"""Parsers for the text of an input; other kinds use the text itself."""
