"""Validate edits of arguments, and write (or neutralise) the model's edit messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from jsonschema.exceptions import ValidationError
from pydantic import JsonValue
from referencing.exceptions import Unresolvable

from twokey.gateway.protocol import argument_messages, digest
from twokey.gateway.protocol.argument_messages import sentence
from twokey.gateway.protocol.records import EditRecord
from twokey.gateway.protocol.schema_closing import closed
from twokey.gateway.protocol.schema_validation import TooMuchWork, problems
from twokey.gateway.protocol.strict_json import JsonObject

# The model is told of one exact mark (`EDIT_MARK`). Letters of other alphabets make
# another text; what is caught here are copies with separators or other case. The first
# gap holds no bracket: otherwise a text of n brackets would take n² steps.
_LOOKALIKE = re.compile(r"\[[^\w\[]*t\W*w\W*o\W*k\W*e\W*y\W*:", re.IGNORECASE)

EDIT_MARK = "[twokey:edited]"
"""Opens every edit text of ours; the same text in a tool's own output is defused."""

UNCONFIRMED_MARK = "[twokey:edit-unconfirmed]"
"""Opens what is said of an edit that there is no record of; it is defused alike."""


def edit_hash(record: EditRecord) -> str:
    """Return the hash of everything that a record says.

    Raises:
        BadJson: when it holds what no record of ours can hold.
    """
    document = digest.canonical(record.model_dump(mode="json"))
    return digest.tagged_hash(digest.EDIT_TAG, document)


def argument_errors(schema: JsonObject | None, args: JsonObject) -> dict[str, str]:
    """Check arguments against the tool's schema (JSON Schema 2020-12).

    Keys that it does not declare are refused unless it says
    ``additionalProperties`` itself: an edit may not smuggle in an argument.

    Returns:
        JSON Pointer into the arguments to a sentence; empty when all is well.
    """
    if schema is None:
        return {}  # nothing is declared; the tool's own reading is still compared
    try:
        # Both: where a schema has `not` or `oneOf`, the closed one may let through what
        # it refuses.
        found = [*problems(schema, args), *problems(closed(schema), args)]
    except Unresolvable:
        return {"": "The tool's schema refers to another one, so this is not checked."}
    except TooMuchWork as costly:
        return {"": f"The tool's schema refers to itself, and {costly}."}
    return _by_place(found)


def edit_errors(
    schema: JsonObject | None, before: JsonObject, after: JsonObject
) -> dict[str, str]:
    """Check an edit: as `argument_errors`, and the formats of what it changed.

    A place whose text was not of its format before is not held to it: that tool uses
    the format loosely.
    """
    errors = argument_errors(schema, after)
    if errors or schema is None:
        return errors
    found = _by_place(problems(schema, after, has_formats=True))
    if not found:
        return {}
    try:
        loose = _by_place(problems(schema, before, has_formats=True))
    except (Unresolvable, TooMuchWork):
        # The schema in force is not the one that these arguments were submitted with.
        loose = {}
    return {place: why for place, why in found.items() if place not in loose}


def _by_place(found: Iterable[ValidationError]) -> dict[str, str]:
    errors: dict[str, str] = {}
    for error in found:
        # The first of a place: a form has one line for it.
        errors.setdefault(argument_messages.pointer(error), sentence(error))
    return errors


def edit_text(record: EditRecord) -> str:
    """Return the sentence block that the model reads about one edit.

    It starts with `EDIT_MARK` and states what was requested, what was executed,
    who changed it and why. Values are JSON, so their text cannot end the block.
    """
    why = f" Their reason: {_json(record.reason)}." if record.reason else ""
    who = record.by.name or record.by.user
    return (
        f"{EDIT_MARK} A reviewer changed this call before it ran. "
        f"Requested arguments: {_json(record.requested)}. "
        f"Executed arguments: {_json(record.executed)}. "
        f"Changed by: {_json(who)} (Slack user {record.by.user}).{why} "
        "The executed arguments are what really happened: use them from here on, "
        "tell the user about the change, and do not repeat the original call."
    )


def unconfirmed_edit_text(record: EditRecord) -> str:
    """Return what the model reads about an edit that the gateway has no record of.

    Records end some time after their calls, so it may be genuine; or it was
    forged by somebody who can write the agent's state.
    """
    return (
        f"{UNCONFIRMED_MARK} This conversation says that a reviewer changed this call "
        "before it ran. The gateway has no record of that call, or has it no longer, "
        "so it can neither confirm nor deny this. "
        f"Requested arguments, as noted: {_json(record.requested)}. "
        f"Executed arguments, as noted: {_json(record.executed)}. "
        "Check what happened before you rely on it, and do not repeat the call."
    )


def defuse(text: str) -> str:
    """Break every look-alike of our edit text in text that is not ours."""
    if "[" not in text:
        return text  # each begins with one
    # Replaced and not removed: text that comes together around a gap could be the mark
    # again.
    return _LOOKALIKE.sub("[not-twokey:", text)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
