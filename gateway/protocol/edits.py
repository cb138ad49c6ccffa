"""Validate edits of arguments, and write (or neutralise) the model's edit messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from jsonschema.exceptions import ValidationError
from pydantic import JsonValue
from referencing.exceptions import Unresolvable

from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import EditOutcome, EditRecord
from keyturn.gateway.protocol.schema_validation import (
    canonical,
    closed,
    matches,
    problems,
    subschemas,
    wanted_by,
)
from keyturn.gateway.protocol.strict_json import JsonObject, pointer_to
from keyturn.gateway.protocol.work import TooMuchWork, one_budget

# Explain to a reviewer why an argument does not fit its JSON Schema.
#
# The library's messages quote the value and name keywords. These sentences are shown
# under the input to the person who typed the value.

_LONGEST = 300
_CHOICES = 10
_LONGEST_QUOTE = 80

_CHARACTERS, _ENTRIES = "The number of characters", "The number of entries"
_FORM = "This does not have the form that the tool's schema asks for"

_TYPES = {
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def sentence(error: ValidationError) -> str:
    """Return one sentence about one problem.

    A sentence that quotes words of the tool's schema names the schema as their source,
    because they may be the agent's.
    """
    make = _SENTENCES.get(str(error.validator), _other)
    return make(error)[:_LONGEST]


def pointer(error: ValidationError) -> str:
    """Return the place of a problem, as a JSON Pointer into the arguments."""
    tokens = list(error.absolute_path)
    if error.validator == "required":
        # The library points at the object, but the field of the form is the missing
        # member.
        missing = [
            name
            for name in cast("list[str]", error.validator_value)
            if name not in cast("JsonObject", error.instance)
        ]
        tokens += missing[:1]
    return pointer_to(tokens)


def _type(error: ValidationError) -> str:
    found = cast("JsonValue", error.validator_value)
    names = found if isinstance(found, list) else [found]
    return f"This has to be {' or '.join(_TYPES.get(str(n), str(n)) for n in names)}."


def _enum(error: ValidationError) -> str:
    found = cast("JsonValue", error.validator_value)
    options = [found]
    if error.validator == "enum" and isinstance(found, list):
        options = found
    shown = ", ".join(map(_quoted, options[:_CHOICES]))
    more = len(options) - _CHOICES
    rest = f" and {more} more" if more > 0 else ""
    return f"The tool's schema allows only: {shown}{rest}."


def _bound(words: str, thing: str = "This") -> Callable[[ValidationError], str]:
    return lambda error: f"{thing} has to be {words} {error.validator_value}."


def _format(error: ValidationError) -> str:
    name = str(error.validator_value)
    reading = canonical(cast("str", error.instance), name)
    if reading is None:
        return f"This has to be {wanted_by(name)}."
    return f"The tool reads this as {reading}. Please write it that way."


def _pattern(error: ValidationError) -> str:
    # Without the pattern: reviewers cannot read regular expressions.
    examples = cast("JsonObject", error.schema).get("examples")
    for one in examples[:_CHOICES] if isinstance(examples, list) else ():
        if not isinstance(one, str) or len(one) > _LONGEST_QUOTE:
            continue
        if matches(one, str(error.validator_value)):
            return f"{_FORM}, such as {_quoted(one)}."
    return f"{_FORM}."


def _unknown_name(error: ValidationError) -> str:
    schema = cast("Mapping[str, Mapping[str, JsonValue]]", error.schema)
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    names = [
        name
        for name in cast("JsonObject", error.instance)
        if name not in known and not any(matches(name, one) for one in patterns)
    ]
    listed = ", ".join(map(_short, names[:_CHOICES]))
    return f"The tool takes no argument of this name: {listed}."


def _branch(error: ValidationError) -> str:
    """Describe the only branch that is not null, as for optional arguments."""
    found: dict[object, ValidationError] = {}
    for one in error.context or ():
        if not (one.validator == "type" and one.validator_value == "null"):
            found.setdefault(one.schema_path[0], one)
    only = [*found.values()]
    return sentence(only[0]) if len(only) == 1 else "The tool takes no such value here."


def _other(error: ValidationError) -> str:
    return f"The tool's schema does not allow this here ({error.validator})."


def _short(text: str) -> str:
    return text[:_LONGEST_QUOTE]


def _quoted(value: object) -> str:
    """Return a value of the schema as JSON, so that its text cannot end the quote."""
    if isinstance(value, str):
        return json.dumps(value[:_LONGEST_QUOTE], ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)[:_LONGEST_QUOTE]


_SENTENCES: dict[str, Callable[[ValidationError], str]] = {
    "type": _type,
    "enum": _enum,
    "const": _enum,
    "required": lambda _: "This is needed.",
    "minimum": _bound("at least"),
    "maximum": _bound("at most"),
    "exclusiveMinimum": _bound("more than"),
    "exclusiveMaximum": _bound("less than"),
    "multipleOf": _bound("a multiple of"),
    "minLength": _bound("at least", _CHARACTERS),
    "maxLength": _bound("at most", _CHARACTERS),
    "minItems": _bound("at least", _ENTRIES),
    "maxItems": _bound("at most", _ENTRIES),
    "uniqueItems": lambda _: "Nothing may be in this list twice.",
    "format": _format,
    "pattern": _pattern,
    "additionalProperties": _unknown_name,
    "unevaluatedProperties": lambda _: "This has a name that the tool does not take.",
    "anyOf": _branch,
    "oneOf": _branch,
}


# The model's prompt names one exact mark (`EDIT_MARK`). Letters of other alphabets make
# a different text; this matches copies with separators or other case. The first gap
# contains no bracket: otherwise a text of n brackets would take n² steps.
_LOOKALIKE = re.compile(r"\[[^\w\[]*k\W*e\W*y\W*t\W*u\W*r\W*n\W*:", re.IGNORECASE)

# With one of these keywords, the closed schema may accept values that the schema
# refuses.
_NEGATING = frozenset({"oneOf", "contains", "not", "if"})

EDIT_MARK = "[keyturn:edited]"
"""Begins every edit text of the gateway; in tool output the same text is defused."""

TOO_LONG = "These arguments take too long to check against the tool's schema."
"""Refusal of arguments whose check exceeds the budget of a call."""

UNCONFIRMED_MARK = "[keyturn:edit-unconfirmed]"
"""Begins the text about an edit without a record; it is defused, too."""


_CHANGES = {
    EditOutcome.EXECUTED: "A reviewer changed this call before it ran.",
    EditOutcome.UNKNOWN: "A reviewer changed this call.",
    EditOutcome.NOT_RUN: "A reviewer changed this call, and it did not run.",
}
_ADVICE = {
    EditOutcome.EXECUTED: "The executed arguments are what really happened: use them "
    "from here on, tell the user about the change, and do not repeat the original "
    "call.",
    EditOutcome.UNKNOWN: "Whether the changed call took effect is unknown. Tell the "
    "user about the change and that this has to be checked, and do not repeat the "
    "call.",
    EditOutcome.NOT_RUN: "Tell the user about the change, and do not repeat the "
    "original call.",
}


def edit_hash(record: EditRecord) -> str:
    """Return the hash of a change: of a record without its outcome and seal.

    Raises:
        BadJson: when it contains values that no edit record can have.
    """
    document = digest.canonical(
        record.model_dump(mode="json", exclude={"outcome", "seal"})
    )
    return digest.tagged_hash(digest.EDIT_TAG, document)


def argument_errors(schema: JsonObject | None, args: JsonObject) -> dict[str, str]:
    """Check arguments against the tool's schema (JSON Schema 2020-12).

    Undeclared keys are refused unless the schema sets ``additionalProperties``: an edit
    cannot smuggle in an argument.

    Returns:
        JSON Pointer into the arguments to a sentence; empty if they fit.
    """
    if schema is None:
        return {}  # nothing is declared; the tool's reading is still compared
    try:
        with one_budget():
            found = problems(closed(schema), args)
            if any(_NEGATING & one.keys() for _, one in subschemas(schema)):
                found = [*problems(schema, args), *found]
    except Unresolvable:
        return {"": "The tool's schema refers to another one, so this is not checked."}
    except TooMuchWork:
        return {"": TOO_LONG}
    return _by_place(found)


def edit_errors(
    schema: JsonObject | None, before: JsonObject, after: JsonObject
) -> dict[str, str]:
    """Check an edit like `argument_errors`, and the formats of changed values.

    If the text at a place did not fit its format before the edit, the format is not
    checked there: the tool uses it loosely.
    """
    try:
        with one_budget():
            errors = argument_errors(schema, after)
            if errors or schema is None:
                return errors
            found = _by_place(problems(schema, after, has_formats=True))
            loose = _loose(schema, before) if found else {}
    except TooMuchWork:
        return {"": TOO_LONG}
    return {place: why for place, why in found.items() if place not in loose}


def _loose(schema: JsonObject, before: JsonObject) -> dict[str, str]:
    try:
        return _by_place(problems(schema, before, has_formats=True))
    except Unresolvable:
        # The current schema may differ from the one at submission.
        return {}


def _by_place(found: Iterable[ValidationError]) -> dict[str, str]:
    errors: dict[str, str] = {}
    for error in found:
        # Only the first error of a place: a form has one line for it.
        errors.setdefault(pointer(error), sentence(error))
    return errors


def edit_text(record: EditRecord, advice: str = "") -> str:
    """Return the text block that the model reads about one edit.

    It starts with `EDIT_MARK`. It contains the change, its author and reason, and
    whether the changed call ran. Values are JSON, so their text cannot end the block.
    ``advice`` replaces the last sentences.
    """
    has_run = record.outcome is EditOutcome.EXECUTED
    why = f" Their reason: {_json(record.reason)}." if record.reason else ""
    who = record.by.name or record.by.user
    slack = f" (Slack user {record.by.user})" if record.by.user else ""
    return (
        f"{EDIT_MARK} {_CHANGES[record.outcome]} "
        f"Requested arguments: {_json(record.original_args)}. "
        f"{'Executed' if has_run else 'Changed'} arguments: "
        f"{_json(record.edited_args)}. "
        f"Changed by: {_json(who)}{slack}.{why} "
        f"{advice or _ADVICE[record.outcome]}"
    )


def unconfirmed_edit_text(record: EditRecord) -> str:
    """Return the text that the model reads about an edit without a record.

    Records expire some time after their calls, so the edit may be genuine. It may also
    be a forgery by an attacker with write access to the agent's state.
    """
    return (
        f"{UNCONFIRMED_MARK} According to this conversation, a reviewer changed this "
        "call. The gateway has no record of that call, or not any more, "
        "so it can neither confirm nor deny the change. "
        f"Requested arguments, as noted: {_json(record.original_args)}. "
        f"Changed arguments, as noted: {_json(record.edited_args)}. "
        "Check what happened before you rely on it, and do not repeat the call."
    )


def edit_as_spelled(record: EditRecord, args: JsonObject) -> EditRecord:
    """Return a record with the order and number types of the call's own arguments."""
    edited = digest.in_spelling_of(args, record.edited_args)
    original = digest.in_spelling_of(args, record.original_args)
    return record.with_(original_args=original, edited_args=edited)


def defuse(text: str) -> str:
    """Break every look-alike of an edit mark in text from elsewhere."""
    if "[" not in text:
        return text  # every mark begins with one
    # Replaced, not removed: the text around a removed mark could join into a new mark.
    return _LOOKALIKE.sub("[not-keyturn:", text)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
