"""Canonicalize a call's arguments: policy, reviewers and tool get the same JSON.

A model may write ``"07"`` for an integer, omit an argument with a default, or use an
alias. The tool would convert the arguments, so a policy that evaluated the model's
spelling would evaluate a different call from the one that runs. The tool's own schema
therefore parses the arguments before the call is submitted, and the parsed values are
serialized as JSON: the canonical document. Parsing the canonical document must give the
same document again. If it does not, the executed arguments would be ambiguous, and the
call is refused.

The document excludes injected arguments: the runtime supplies them, not the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from inspect import Signature
from typing import Any, cast

from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.tools.base import _get_runnable_config_param  # pyright: ignore[reportPrivateUsage] - LangChain's own notion of it
from pydantic import JsonValue, ValidationError
from pydantic import v1 as pydantic_v1

from keyturn.agent.argument_models import (
    ArgumentModel,
    argument_model,
    passed_names,
    without_injected,
)
from keyturn.gateway.errors import BadJson, InexactNumber
from keyturn.gateway.failures import any_failure
from keyturn.gateway.protocol import digest, strict_json
from keyturn.gateway.protocol.parameters import signature_of
from keyturn.gateway.protocol.records import EditRecord
from keyturn.gateway.protocol.schema_validation import checkable, problems
from keyturn.gateway.protocol.strict_json import JsonObject

# Bind the arguments of a call to the functions of its tool before it is submitted.
#
# A schema and a function can disagree: the function lacks an argument, takes it only by
# position, or needs one that the schema does not declare. Python would only raise when
# the approved call is made. LangChain also passes its own values under names that an
# MCP server may declare as arguments, and silently drops the caller's value.


@dataclass(frozen=True, slots=True)
class _Takes:
    """How a function is called.

    Attributes:
        signature: the signature that Python binds the arguments to.
        parameters: the names that LangChain sees, also behind a decorator.
        set_by_langchain: the subset of them that LangChain sets itself.
        first: positional arguments: a method gets its tool.
    """

    signature: Signature
    parameters: frozenset[str]
    set_by_langchain: frozenset[str]
    first: tuple[None, ...]

    def problem(self, names: AbstractSet[str], injected: AbstractSet[str]) -> str:
        """Return why the function cannot be called with these names, or ""."""
        taken = names & (self.set_by_langchain | injected)
        if taken:
            return (
                f"LangChain sets the argument {min(taken)!r} itself, so the tool would "
                "not receive the call's value; give the argument another name"
            )
        given = names | self.set_by_langchain | (injected & self.parameters)
        try:
            self.signature.bind(*self.first, **dict.fromkeys(given))
        except TypeError as error:
            return f"the function of the tool cannot be called with them ({error})"
        return ""


def binding_problem(
    tool: BaseTool, names: AbstractSet[str], injected: AbstractSet[str]
) -> str:
    """Return why a tool cannot be called with arguments of these names, or "".

    Args:
        tool: the tool.
        names: the names of the arguments that its function receives.
        injected: the names in its schema that the runtime supplies.
    """
    kind: Any = type(tool)
    if kind._to_args_and_kwargs is not _PASSED_BY_NAME:  # noqa: SLF001 - LangChain's own
        return ""  # such a class passes its arguments in another way, as `Tool` does
    injected |= cast("frozenset[str]", cast("Any", tool)._injected_args_keys)  # noqa: SLF001 - LangChain's own notion of injected
    functions: list[Any] = []
    if isinstance(tool, StructuredTool):
        functions = [one for one in (tool.func, tool.coroutine) if one]
    calls = [_takes(kind._run, (None,)), _takes(kind._arun, (None,))]  # noqa: SLF001 - as LangChain runs it
    calls += [_takes(function, ()) for function in functions]
    found = (one.problem(names, injected) for one in calls if one)
    return next(filter(None, found), "")


_PASSED_BY_NAME = cast("Any", BaseTool)._to_args_and_kwargs  # noqa: SLF001 - LangChain's own


def _takes(function: Callable[..., Any], first: tuple[None, ...]) -> _Takes | None:
    try:
        seen = signature_of(function).parameters
        # Python binds to the outermost function, even if a decorator shows another.
        outer = signature_of(function, is_outermost=not first)
    except (TypeError, ValueError):
        return None  # a built-in without a signature; the call itself may fail
    config = _get_runnable_config_param(function)
    names = {"run_manager" if first else "callbacks"} & seen.keys()
    if config is not None:
        names |= {config}
    return _Takes(outer, frozenset(seen), frozenset(names), first)


_MAX_ERRORS = 3
_MAX_VALUE_CHARS = 80
_MAX_MESSAGE_CHARS = 300


class ArgumentMismatch(ValueError):
    """Arguments do not fit their tool; the text describes the mismatch as a clause."""


class SchemaFault(ArgumentMismatch):
    """A tool's schema does not parse its own output: no corrected call helps."""


def caller_args(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a caller may give, without the injected ones."""
    shown = without_injected(tool, args)
    schema = tool.args_schema
    declared: Mapping[str, Any] = {}
    if isinstance(schema, dict):
        declared = schema.get("properties") or {}
    # LangChain removes two reserved names, which a tool of an MCP server may declare.
    return {key: args[key] for key in args if key in shown or key in declared}


def canonical_args(tool: BaseTool, args: JsonObject) -> JsonObject:
    """Return the canonical document of a call's arguments.

    A tool without a schema, or with a JSON Schema, does not change its arguments, so
    neither does this function. Arguments that violate the schema are refused.

    Args:
        tool: the tool that is called.
        args: strict JSON, as the model wrote it.

    Raises:
        ArgumentMismatch: when they do not fit the tool, or have no canonical document.
    """
    document = function_args(tool, args)
    problem = binding_problem(tool, *passed_names(tool, document))
    if problem:
        # Without a schema, the model sees only the function's parameters and can
        # correct its call.
        raise (ArgumentMismatch if tool.args_schema is None else SchemaFault)(problem)
    return document


def function_args(tool: BaseTool, args: JsonObject) -> JsonObject:
    """Return the canonical document for a function that is called directly.

    Raises:
        ArgumentMismatch: as `canonical_args` does.
    """
    schema = tool.args_schema
    if isinstance(schema, type):
        return _canonical(argument_model(tool), _plain(without_injected(tool, args)))
    given = _plain(caller_args(tool, args))
    if isinstance(schema, dict):
        _check_json_schema(cast("JsonObject", schema), given)
    return given


def plain(args: object) -> JsonObject:
    """Return arguments as parsed from their canonical bytes.

    Raises:
        BadJson: when they are not strict JSON.
    """
    if not isinstance(args, dict):
        return strict_json.accept_object(args)  # raises, and names the type
    return cast("JsonObject", digest.parsed(cast("JsonObject", args)))


def edit_as_spelled(record: EditRecord, args: JsonObject) -> EditRecord:
    """Return a record with the order and number types of the call's own arguments."""
    edited = digest.in_spelling_of(args, record.edited_args)
    original = digest.in_spelling_of(args, record.original_args)
    return record.with_(original_args=original, edited_args=edited)


def _canonical(model: ArgumentModel, given: JsonObject) -> JsonObject:
    first, written = _read(model, given)
    if digest.same(written, given):
        return written  # already canonical: it parses to itself
    second, again = _read_again(model, written)
    # Pydantic does not validate defaults: ``amount: Decimal = 0`` is an int here. The
    # document gets the value that the default has when it is parsed as an argument.
    filled = model.defaulted(first)
    defaults = {name: value for name, value in again.items() if name in filled}
    document = {**written, **defaults}
    # The parsed defaults make another document, which must be stable too.
    if not digest.same(document, written):
        second, again = _read_again(model, document)
    # Compared with a second parse, not with the input: a model may write "07".
    if not digest.same(document, again):
        place = _first_difference(document, again)
        raise SchemaFault(
            f"the tool's schema reads its output differently at {place}, so the "
            "arguments that would run are ambiguous"
        )
    # Equal documents can hide different values: a type may serialize two values alike.
    lost = model.first_difference(first, second, ignoring=filled)
    if lost is not None:
        raise SchemaFault(
            f"the tool's schema does not write {lost!r} the way it reads it, so the "
            "arguments that would run are ambiguous"
        )
    return document


def _read_again(model: ArgumentModel, written: JsonObject) -> tuple[object, JsonObject]:
    try:
        return _read(model, written)
    except ArgumentMismatch as error:
        # For example, an alias of a nested model that is only for parsing.
        raise SchemaFault(
            f"the tool's schema does not read its own output ({error}), so the "
            "arguments that would run are ambiguous"
        ) from error


def _read(model: ArgumentModel, given: JsonObject) -> tuple[object, JsonObject]:
    """Return arguments parsed by the schema, and serialized again."""
    try:
        instance = model.read(given)
    except (ValidationError, pydantic_v1.ValidationError) as error:
        raise ArgumentMismatch(
            _error_text(cast("list[Any]", error.errors()))
        ) from error
    except any_failure() as error:
        # A validator may run any code; if it fails, the call does not run.
        raise ArgumentMismatch(
            f"the tool's schema could not read them ({type(error).__name__})"
        ) from error
    defaulted = model.defaulted(instance)
    try:
        written = _plain(model.write(instance))
    except any_failure():  # a serializer may run any code and raise anything
        written = _without_unwritable(model, instance, defaulted)
    if defaulted:
        # A default such as ``limit: int = None`` does not fit its own type. Parsing
        # would refuse it, so it is omitted, and the tool fills it in.
        written = _without_bad_defaults(model, written, defaulted)
    return instance, written


def _without_unwritable(
    model: ArgumentModel, instance: object, defaulted: frozenset[str]
) -> JsonObject:
    """Return serialized arguments without the defaults that JSON cannot represent.

    An example is ``timeout: float = inf``: the tool fills in such a default itself.
    """
    bad: set[str] = set()
    for name in sorted(model.names, key=lambda one: one in defaulted):
        try:
            _plain(model.write_one(instance, name))
        except any_failure() as error:
            if name in defaulted:
                bad.add(name)
            elif isinstance(error, ArgumentMismatch):
                raise
            else:
                raise SchemaFault(
                    f"the tool's schema does not write {name!r} as JSON "
                    f"({type(error).__name__}), so the arguments that would run are "
                    "ambiguous"
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
    except any_failure():  # custom validators; the next parse reports it
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
    except any_failure():  # a schema may be any JSON and raise any error
        # The schema is unusable, so the arguments stay unchecked. The gateway does not
        # allow edits of this tool's calls.
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
        # The input has no such number, so the tool parsed it from text: no spelling
        # helps.
        raise SchemaFault(
            f"the tool converts {error.pointer!r}, and {error.problem}; declare it as "
            "`Decimal` or `str` to allow any number"
        ) from error
    except BadJson as error:
        raise ArgumentMismatch(
            f"the tool converts them to values that are not strict JSON: {error}"
        ) from error


def _first_difference(one: JsonObject, other: JsonObject) -> str:
    names = sorted(one.keys() | other.keys())
    absent = object()
    for name in names:
        left: JsonValue | object = one.get(name, absent)
        if left != other.get(name, absent):
            return repr(name)
    return "the arguments"
