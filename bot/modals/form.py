"""Convert an item's arguments into a form, and a submitted form into arguments.

A field of a nested object is named by its path. Every argument is one field or part of
one, and a read-only field has a reason. The fields depend only on the item, so they are
the same when the form is submitted.

An unchanged input keeps the exact value it was made from, even if Slack altered its
text. Numbers are read as decimals and refused when a JSON number could not hold them
exactly; none of them passes through a float unseen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import assert_never, cast

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from keyturn.bot.blocks import (
    Block,
    block_object,
    context,
    input_block,
    multi_select,
    number_input,
    option,
    radio_buttons,
    section,
    select,
    text_input,
)
from keyturn.bot.cards.listing import title_of
from keyturn.bot.ids import VALUE, Input
from keyturn.bot.modals.schema import (
    ABSENT,
    Absent,
    Kind,
    Plan,
    Value,
    is_carried,
    is_same,
    json_text,
    members,
    moment_text,
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
from keyturn.bot.text import LINE, NAME, fit, label, untrusted
from keyturn.gateway.approvals.editing import as_read
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import digest, strict_json
from keyturn.gateway.protocol.strict_json import JsonObject, tokens_of
from keyturn.gateway.protocol.work import TooMuchWork, one_budget, spend
from keyturn.sandbox.blockkit.formats import day, number
from keyturn.sandbox.blockkit.limits import TYPED

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
            return _flag_input(field, one)
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


def _flag_input(field: Field, one: str | None) -> Block:
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
