"""Canonicalize a call's arguments: policy, people and tool get the same JSON.

A model writes ``"07"`` where a tool takes an integer, leaves out what has a default, or
uses an alias. The tool makes something else of that, and a policy that evaluated the
model's spelling evaluated another call than the one that runs. So the tool's own schema
reads the arguments before anybody is asked, and what it made of them is written down
as JSON: the canonical document. Reading the canonical document gives the same document
again; where it does not, nobody could say which of the two runs, and the call does not.

Injected arguments are not part of it: the runtime gives them, not the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from langchain_core.tools import BaseTool
from pydantic import JsonValue, ValidationError
from pydantic import v1 as pydantic_v1

from twokey.agent.argument_models import ArgumentModel, read_by
from twokey.agent.injected_arguments import overwritten, without_injected
from twokey.gateway.errors import BadJson, InexactNumber
from twokey.gateway.protocol import digest, strict_json
from twokey.gateway.protocol.schema_validation import checkable, problems
from twokey.gateway.protocol.strict_json import JsonObject

_MAX_ERRORS = 3
_MAX_VALUE_CHARS = 80
_MAX_MESSAGE_CHARS = 300


class ArgumentMismatch(ValueError):
    """Arguments do not fit their tool; the text says how, as a clause."""


class SchemaFault(ArgumentMismatch):
    """A tool's schema does not read what it writes: no correction of a call helps."""


def caller_args(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a caller may give, without the injected ones."""
    shown = without_injected(tool, args)
    schema = tool.args_schema
    declared: Mapping[str, Any] = {}
    if isinstance(schema, dict):
        declared = schema.get("properties") or {}
    # LangChain removes two names of its own, which a tool of an MCP server may declare.
    return {key: args[key] for key in args if key in shown or key in declared}


def canonical_args(tool: BaseTool, args: JsonObject) -> JsonObject:
    """Return the canonical document of a call's arguments.

    A tool without a schema, or with a JSON Schema, changes nothing in its arguments:
    then neither does this, but what does not fit the schema is refused.

    Args:
        tool: the tool that is called.
        args: strict JSON, as the model wrote it.

    Raises:
        ArgumentMismatch: when they do not fit the tool, or have no canonical document.
    """
    return read_plain(tool, args, copied=_plain)


def read_plain(
    tool: BaseTool,
    args: JsonObject,
    *,
    copied: Callable[[object], JsonObject] | None = None,
) -> JsonObject:
    """Return the same of arguments that `plain` returned; it may be these themselves.

    Args:
        tool: the tool that is called.
        args: its arguments.
        copied: returns them as `plain` does, where they are any strict JSON.

    Raises:
        ArgumentMismatch: as `canonical_args` does.
    """
    document = _document(tool, args, copied)
    taken = overwritten(tool) & document.keys()
    if taken:
        raise SchemaFault(
            f"LangChain passes a value of its own as {min(taken)!r}, so the tool would "
            "not get this argument; it needs another name"
        )
    return document


def function_args(tool: BaseTool, args: JsonObject) -> JsonObject:
    """Return the same as `canonical_args`, for a function that is called by itself.

    Raises:
        ArgumentMismatch: as `canonical_args` does.
    """
    return _document(tool, args, _plain)


def _document(
    tool: BaseTool, args: JsonObject, copied: Callable[[object], JsonObject] | None
) -> JsonObject:
    schema = tool.args_schema
    if isinstance(schema, type):
        model, shown = read_by(tool, args)
        return _canonical(model, copied(shown) if copied else shown)
    shown = caller_args(tool, args)
    given = copied(shown) if copied else shown
    if isinstance(schema, dict):
        _check_json_schema(cast("JsonObject", schema), given)
    return given


def plain(args: object) -> JsonObject:
    """Return arguments as parsed from their canonical bytes.

    Raises:
        BadJson: when they are not strict JSON.
    """
    if not isinstance(args, dict):
        return strict_json.accept_object(args)  # which says what it is
    return cast("JsonObject", digest.parsed(cast("JsonObject", args)))


def same(one: JsonValue, other: JsonValue) -> bool:
    """Return whether two values have the same canonical bytes."""
    if _is_alike(one, other, 0):
        return True
    try:
        return digest.canonical(one) == digest.canonical(other)
    except BadJson:
        return False


def _is_alike(one: object, other: object, depth: int) -> bool:
    """Return whether two values are plain, and alike member by member.

    False says nothing: 1.0 and 1 have the same canonical bytes.
    """
    kind = type(one)
    if kind is not type(other) or depth > strict_json.MAX_DEPTH:
        return False
    if kind is str:
        # What is not ASCII may hold half of a surrogate pair, which has no bytes.
        return one == other and cast("str", one).isascii()
    if kind is dict:
        left, right = (
            cast("dict[object, object]", one),
            cast("dict[object, object]", other),
        )
        return len(left) == len(right) and all(
            type(key) is str
            and key.isascii()
            and key in right
            and _is_alike(value, right[key], depth + 1)
            for key, value in left.items()
        )
    if kind is list:
        ours, theirs = cast("list[object]", one), cast("list[object]", other)
        return len(ours) == len(theirs) and all(
            _is_alike(each, theirs[place], depth + 1) for place, each in enumerate(ours)
        )
    if one is None or kind is bool:
        return one is other
    return strict_json.is_exact(one) and one == other


def _canonical(model: ArgumentModel, given: JsonObject) -> JsonObject:
    first, written = _read(model, given)
    if written is given or same(written, given):
        return written  # the document itself was given, and is read as itself
    second, again = _read_again(model, written)
    # Pydantic does not validate defaults: ``amount: Decimal = 0`` is an int here. The
    # document gets the value that parsing it as an argument gives.
    filled = model.defaulted(first)
    defaults = {name: value for name, value in again.items() if name in filled}
    document = {**written, **defaults}
    # With parsed defaults it is another document, and must be stable too.
    if not same(document, written):
        second, again = _read_again(model, document)
    # Compared with a second reading, not with what was given: a model may write "07".
    if not same(document, again):
        place = _first_difference(document, again)
        raise SchemaFault(
            f"the tool's schema reads its own output differently at {place}, so nobody "
            "can say what would run"
        )
    # Documents can be equal where values differ: a type may serialize two values alike.
    lost = model.first_difference(first, second, ignoring=filled)
    if lost is not None:
        raise SchemaFault(
            f"the tool's schema does not write {lost!r} the way it reads it, so nobody "
            "can say what would run"
        )
    return document


def _read_again(model: ArgumentModel, written: JsonObject) -> tuple[object, JsonObject]:
    try:
        return _read(model, written)
    except ArgumentMismatch as error:
        # As with an alias of a nested model that is only for reading.
        raise SchemaFault(
            f"the tool's schema does not read what it writes itself ({error}), so "
            "nobody can say what would run"
        ) from error


def _read(model: ArgumentModel, given: JsonObject) -> tuple[object, JsonObject]:
    """Return arguments parsed by the schema, and serialized again."""
    try:
        instance = model.read(given)
    except (ValidationError, pydantic_v1.ValidationError) as error:
        raise ArgumentMismatch(
            _error_text(cast("list[Any]", error.errors()))
        ) from error
    except Exception as error:
        # A validator may be any code; arguments that it fails on do not run.
        raise ArgumentMismatch(
            f"the tool's schema could not read them ({type(error).__name__})"
        ) from error
    defaulted = model.defaulted(instance)
    try:
        shown = model.write(instance)
        if not defaulted and _is_alike(shown, given, 0):
            return instance, given  # which is plain: nothing is left to be done
        written = _plain(shown)
    except Exception:  # noqa: BLE001 - of a serializer, which may be any code
        written = _without_unwritable(model, instance, defaulted)
    if defaulted:
        # A default such as ``limit: int = None`` does not fit its own type. Parsing
        # would refuse it, so it is left out and the tool fills it in.
        written = _without_bad_defaults(model, written, defaulted)
    return instance, written


def _without_unwritable(
    model: ArgumentModel, instance: object, defaulted: frozenset[str]
) -> JsonObject:
    """Return serialized arguments without the defaults that no JSON can hold.

    As of ``timeout: float = inf``: the tool fills such a default in itself.
    """
    bad: set[str] = set()
    for name in sorted(model.names, key=lambda one: one in defaulted):
        try:
            _plain(model.write_one(instance, name))
        except Exception as error:
            if name in defaulted:
                bad.add(name)
            elif isinstance(error, ArgumentMismatch):
                raise
            else:
                raise SchemaFault(
                    f"the tool's schema does not write {name!r} as JSON "
                    f"({type(error).__name__}), so nobody can say what would run"
                ) from error
    return _plain(model.write(instance, without=bad))


def _without_bad_defaults(
    model: ArgumentModel, written: JsonObject, defaulted: frozenset[str]
) -> JsonObject:
    try:
        model.read(written)
    except (ValidationError, pydantic_v1.ValidationError) as error:
        # Only defaults: a value that the model (LLM) wrote is never dropped.
        bad = {str(row["loc"][0]) for row in error.errors() if row["loc"]} & defaulted
        return {key: value for key, value in written.items() if key not in bad}
    except Exception:  # noqa: BLE001 - foreign validators; the next reading says it
        return written
    return written


def _error_text(rows: list[dict[str, Any]]) -> str:
    lines = [_error_line(row) for row in rows[:_MAX_ERRORS]]
    more = len(rows) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")


def _error_line(row: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in row["loc"]) or "the arguments"
    text = f"{place}: {row['msg']}"
    if "input" not in row or row["type"] == "missing":
        return text
    return f"{text} (got {_value_text(row['input'])})"


def _value_text(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = type(value).__name__
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"


def _check_json_schema(schema: JsonObject, given: JsonObject) -> None:
    try:
        found = problems(checkable(schema), given)
    except Exception:  # noqa: BLE001 - a schema may be any JSON, on which the library fails as it may
        # The schema is unusable, so the arguments stay unchecked. The gateway does not
        # allow edits of calls of such a tool.
        return
    if found:
        rows = [
            {"loc": tuple(one.absolute_path), "msg": one.message[:_MAX_MESSAGE_CHARS]}
            for one in found
        ]
        raise ArgumentMismatch(_error_text(rows))


def _plain(args: object) -> JsonObject:
    try:
        return plain(args)
    except InexactNumber as error:
        # Made of a text, as there is none in what was given: no spelling of it helps.
        raise SchemaFault(
            f"the tool makes of {error.pointer!r} a number beyond 2^53-1, which JSON "
            "does not keep exact; declared as `Decimal` or `str` it can be any number"
        ) from error
    except BadJson as error:
        raise ArgumentMismatch(
            f"what the tool makes of them is not strict JSON: {error}"
        ) from (error)


def _first_difference(one: JsonObject, other: JsonObject) -> str:
    names = sorted(one.keys() | other.keys())
    absent = object()
    for name in names:
        left: JsonValue | object = one.get(name, absent)
        if left != other.get(name, absent):
            return repr(name)
    return "the arguments"
