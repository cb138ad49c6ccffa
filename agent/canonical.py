"""Canonicalize a call's arguments: policy, reviewers and tool get the same JSON.

A model may write ``"07"`` for an integer, omit an argument with a default, or use an
alias. The tool would convert the arguments, so a policy that evaluated the model's
spelling would evaluate a different call from the one that runs. The tool's own schema
therefore parses the arguments before the call is submitted, and the parsed values are
serialized as JSON: the canonical document. Parsing the canonical document must give the
same document, and equal values, again. If it does not, the executed arguments would be
ambiguous, and the call is refused: secrets, which pydantic writes as asterisks, and
nested models with another name for output have no canonical document.

The document excludes injected arguments: the runtime supplies them, not the model.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from inspect import Signature
from typing import Any, cast

from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.tools.base import _get_runnable_config_param  # pyright: ignore[reportPrivateUsage] - LangChain's own notion of it
from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError

from keyturn.gateway.errors import BadJson, InexactNumber
from keyturn.gateway.failures import any_failure
from keyturn.gateway.protocol import digest, strict_json
from keyturn.gateway.protocol.parameters import signature_of
from keyturn.gateway.protocol.schema_validation import checkable, problems
from keyturn.gateway.protocol.strict_json import JsonObject


class ArgumentMismatch(ValueError):
    """Arguments do not fit their tool; the text describes the mismatch as a clause."""


class SchemaFault(ArgumentMismatch):
    """A tool's schema does not parse its own output: no corrected call helps."""


_AS_READ: dict[str, Any] = {
    "mode": "json",
    "by_alias": True,
    # Without computed fields, which are serialized but not parsed, and with `Json` as
    # text.
    "round_trip": True,
    "warnings": False,
}


def _with_sorted_sets(value: object, shown: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a serialized value with its sets in canonical order.

    The order of a set differs between processes, and would change the hash.
    """
    is_dataclass = dataclasses.is_dataclass(value)
    if isinstance(value, set | frozenset) and isinstance(shown, list):
        return sorted(cast("list[JsonValue]", shown), key=digest.canonical)
    if isinstance(value, list | tuple) and isinstance(shown, list):
        pairs = zip(
            cast("list[object]", value), cast("list[object]", shown), strict=False
        )
        return [_with_sorted_sets(*pair) for pair in pairs]
    if not isinstance(shown, dict):
        return shown
    members: Mapping[str, object] = {}
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        names = {field.serialization_alias or name: name for name, field in fields}
        members = {key: getattr(value, name) for key, name in names.items()}
    elif is_dataclass:
        members = vars(value)
    elif isinstance(value, dict):
        members = cast("dict[str, object]", value)
    rows = cast("dict[str, Any]", shown).items()
    return {key: _with_sorted_sets(members.get(key), one) for key, one in rows}


def _shadowed(value: object) -> str | None:
    """Return an extra value's name that is also the name of a field, or None.

    A field may be read under its alias only. The document would show the extra value
    under the field's name, while the field has another value.
    """
    members: Iterable[object] = ()
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        names = {one.serialization_alias or name for name, one in fields.items()}
        extra = value.model_extra or {}
        if taken := extra.keys() & (names | fields.keys()):
            return min(taken)
        members = [*vars(value).values(), *extra.values()]
    elif dataclasses.is_dataclass(value):
        members = [getattr(value, one.name) for one in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value).values()
    elif isinstance(value, list | tuple | set | frozenset | deque):
        members = cast("Iterable[object]", value)
    return next(filter(None, map(_shadowed, members)), None)


def _differ(one: object, other: object) -> bool:
    try:
        return bool(one != other)
    except Exception:  # noqa: BLE001 - an array, or a custom comparison
        return True


def _default_document(field: FieldInfo) -> JsonValue:
    """Return the JSON of a field's default, as it would be parsed as an argument.

    Raises:
        Exception: any, if the default has none, such as ``limit: int = None`` or an
            infinity. The tool then fills in the default itself.
    """
    if field.exclude:
        raise ValueError("It is parsed and not serialized.")
    kind = TypeAdapter[Any](field.rebuild_annotation())
    # Pydantic does not validate defaults: ``amount: Decimal = 0`` is an int.
    value = kind.validate_python(field.default)
    shown = _with_sorted_sets(value, kind.dump_python(value, **_AS_READ))
    document = strict_json.accept(shown)
    if _differ(kind.validate_python(document), value):
        raise ValueError(document)
    return document


class ArgumentModel:
    """Parser and serializer of one tool's arguments."""

    def __init__(self, schema: type[BaseModel], injected: frozenset[str]) -> None:
        self.injected = injected
        self._model = schema
        if injected:
            # Optional: the model (LLM) never gives injected arguments; the runtime adds
            # them later.
            anything: dict[str, Any] = dict.fromkeys(injected, (Any, None))
            self._model = create_model(schema.__name__, __base__=schema, **anything)
        config = schema.model_config
        by_name = config.get("populate_by_name") or config.get("validate_by_name")
        # By field name: the parsed name, and the JSON of the default. The tool itself
        # fills in the other defaults.
        self._read_as: dict[str, str] = {}
        self._serialized_as: dict[str, str] = {}
        self._defaults: dict[str, JsonValue] = {}
        self._own_defaults = set[str]()
        for name, field in self._model.model_fields.items():
            if name in injected:
                continue
            alias = field.validation_alias
            is_alias = isinstance(alias, str) and not by_name
            self._read_as[name] = cast("str", alias) if is_alias else name
            self._serialized_as[name] = field.serialization_alias or name
            if field.is_required() or field.default_factory is not None:
                continue
            try:
                self._defaults[name] = _default_document(field)
            except Exception:  # noqa: BLE001 - pydantic, or a custom validator
                self._own_defaults.add(name)

    def read(self, given: JsonObject) -> BaseModel:
        """Parse arguments into an instance of the model; raises validators' errors."""
        return self._model.model_validate(given)

    def write(self, instance: BaseModel) -> dict[str, Any]:
        """Return an instance as JSON values, under the names that `read` accepts.

        Raises `SchemaFault`, or any serializer's error, including custom ones.
        """
        if name := _shadowed(instance):
            raise SchemaFault(
                f"the tool's schema does not read {name!r} into the field of this "
                "name, so the arguments that would run are ambiguous"
            )
        unset = (self._defaults.keys() | self._own_defaults) - instance.model_fields_set
        shown = instance.model_dump(**_AS_READ, exclude={*self.injected, *unset})
        read_as = {
            self._serialized_as[name]: one for name, one in self._read_as.items()
        }
        rows: dict[str, Any] = _with_sorted_sets(instance, shown)
        written = {read_as.get(key, key): one for key, one in rows.items()}
        filled = unset & self._defaults.keys()
        return written | {self._read_as[name]: self._defaults[name] for name in filled}

    def field_names(self, document: JsonObject) -> frozenset[str]:
        """Return the names of the fields in a document that uses parsed names."""
        fields = {read: name for name, read in self._read_as.items()}
        return frozenset(fields.get(name, name) for name in document)

    def lost(self, given: BaseModel, again: BaseModel) -> str | None:
        """Return the first argument that reading the document changes, or None.

        Defaults of a factory are in the document, too; constant ones are read once.
        """
        constant = self._defaults.keys() | self._own_defaults
        names = self._read_as.keys() - (constant - given.model_fields_set)
        changed = (
            self._read_as[name]
            for name in sorted(names)
            if _differ(getattr(given, name), getattr(again, name))
        )
        return next(changed, None)

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the output of `write`."""
        schema = self._model.model_json_schema(
            mode="serialization", by_alias=True, schema_generator=_SerializedSchema
        )
        names = {
            self._serialized_as[name]: read for name, read in self._read_as.items()
        }
        own = {self._read_as[name] for name in self._own_defaults}
        required = [names[key] for key in schema.get("required", ()) if key in names]
        properties = schema.get("properties", {})
        schema["properties"] = {
            names[key]: one for key, one in properties.items() if key in names
        }
        schema["required"] = [name for name in required if name not in own]
        return schema


def argument_model(tool: BaseTool) -> ArgumentModel:
    """Return the parser and serializer of a tool's arguments, cached per model.

    Raises:
        SchemaFault: when the tool has no model of pydantic 2.
    """
    return _model_and_args(tool, {})[0]


def _model_and_args(
    tool: BaseTool, args: JsonObject
) -> tuple[ArgumentModel, JsonObject]:
    """Return a tool's argument model, and arguments without the injected ones."""
    schema: object = tool.args_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        raise SchemaFault(
            f"the tool {tool.name!r} has no model of pydantic 2 of its arguments; "
            "declare them with pydantic.BaseModel"
        )
    names = frozenset(schema.model_fields)
    given = without_injected(tool, dict.fromkeys([*names, *args]))
    shown = {name: value for name, value in args.items() if name in given}
    return _cached_model(schema, names.difference(given)), shown


@lru_cache(maxsize=512)
def _cached_model(schema: type[BaseModel], injected: frozenset[str]) -> ArgumentModel:
    return ArgumentModel(schema, injected)


class _SerializedSchema(GenerateJsonSchema):
    """JSON Schema of the output of `write`: fields with a default are required."""

    # A default that JSON cannot represent is omitted, as it is from the document.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own

    def encode_default(self, dft: Any) -> Any:  # noqa: ANN401 - pydantic's own signature
        encoded = super().encode_default(dft)
        try:
            return strict_json.accept(encoded)
        except BadJson as error:
            raise PydanticSerializationError(str(error)) from error

    def model_fields_schema(self, schema: Any) -> Any:  # noqa: ANN401 - pydantic's own signature
        without: Any = {**schema, "computed_fields": []}
        return super().model_fields_schema(without)

    def dataclass_args_schema(self, schema: Any) -> Any:  # noqa: ANN401 - pydantic's own signature
        without: Any = {**schema, "computed_fields": []}
        return super().dataclass_args_schema(without)

    def decimal_schema(self, schema: Any) -> Any:  # noqa: ANN401, ARG002 - pydantic's own signature
        # Pydantic's pattern uses look-ahead, which no edit form can check.
        return {"type": "string", "format": "decimal"}

    def json_schema(self, schema: Any) -> Any:  # noqa: ANN401, ARG002 - pydantic's own signature
        return {"type": "string", "contentMediaType": "application/json"}

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: ANN401, FBT001 - pydantic's own signature
        if field["type"] == "typed-dict-field":
            return super().field_is_required(field, total)
        return not field.get("serialization_exclude")


def without_injected(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments without those that LangChain injects."""
    found: dict[str, Any] = tool._filter_injected_args(dict(args))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - LangChain's own notion of injected
    return found


# Bind the arguments of a call to the functions of its tool before it is submitted.
#
# A schema and a function can disagree: the function lacks an argument, takes it only by
# position, or needs one that the schema does not declare. Python would only raise when
# the approved call is made. LangChain also passes its own values under names that an
# MCP server may declare as arguments, and silently drops the caller's value.


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
    if kind._to_args_and_kwargs is not cast("Any", BaseTool)._to_args_and_kwargs:  # noqa: SLF001 - LangChain's own
        return ""  # such a class passes its arguments in another way, as `Tool` does
    injected |= cast("frozenset[str]", cast("Any", tool)._injected_args_keys)  # noqa: SLF001 - LangChain's own notion of injected
    # A method gets its tool as well.
    calls: list[tuple[Any, tuple[None, ...]]]
    calls = [(kind._run, (None,)), (kind._arun, (None,))]  # noqa: SLF001 - as LangChain runs it
    if isinstance(tool, StructuredTool):
        calls += [(one, ()) for one in (tool.func, tool.coroutine) if one]
    for function, first in calls:
        try:
            seen = _inspected(function, is_method=bool(first))
        except TypeError:  # it has no hash
            seen = _inspected.__wrapped__(function, is_method=bool(first))
        if seen is None:
            continue
        signature, parameters, set_by_langchain = seen
        if taken := names & (set_by_langchain | injected):
            return (
                f"LangChain sets the argument {min(taken)!r} itself, so the tool would "
                "not receive the call's value; give the argument another name"
            )
        try:
            given = names | set_by_langchain | (injected & parameters)
            signature.bind(*first, **dict.fromkeys(given))
        except TypeError as error:
            return f"the function of the tool cannot be called with them ({error})"
    return ""


# Cached: each call is checked twice, and inspecting takes longer than the rest.
@lru_cache(maxsize=512)
def _inspected(
    function: Callable[..., Any], *, is_method: bool
) -> tuple[Signature, frozenset[str], frozenset[str]] | None:
    """Return a function's signature, parameters, and those that LangChain sets.

    Returns None for a built-in without a signature; the call itself may fail.
    """
    try:
        parameters = frozenset(signature_of(function).parameters)
        # Python binds to the outermost function, even if a decorator shows another.
        signature = signature_of(function, is_outermost=not is_method)
    except (TypeError, ValueError):
        return None
    config = _get_runnable_config_param(function)
    own = {"run_manager" if is_method else "callbacks"} & parameters
    return signature, parameters, frozenset([*own, config] if config else own)


_MAX_ERRORS = 3
_MAX_VALUE_CHARS = 80
_MAX_MESSAGE_CHARS = 300


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
    document, names, injected = _document(tool, args)
    problem = binding_problem(tool, names, injected)
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
    return _document(tool, args)[0]


def _document(
    tool: BaseTool, args: JsonObject
) -> tuple[JsonObject, frozenset[str], frozenset[str]]:
    """Return the canonical document of arguments, and two sets of names.

    The function gets fields of the names in the first set, and the runtime supplies
    those in the second one.
    """
    schema = tool.args_schema
    if isinstance(schema, type):
        model, shown = _model_and_args(tool, args)
        document = _canonical(model, _plain(shown))
        return document, model.field_names(document), model.injected
    given = _plain(caller_args(tool, args))
    if isinstance(schema, dict):
        _check_json_schema(cast("JsonObject", schema), given)
    return given, frozenset(given), frozenset()


def plain(args: object) -> JsonObject:
    """Return arguments as parsed from their canonical bytes.

    Raises:
        BadJson: when they are not strict JSON.
    """
    if not isinstance(args, dict):
        return strict_json.accept_object(args)  # raises, and names the type
    return cast("JsonObject", digest.parsed(cast("JsonObject", args)))


def _canonical(model: ArgumentModel, given: JsonObject) -> JsonObject:
    first = _read(model, given)
    document = _written(model, first)
    if digest.same(document, given):
        return document  # already canonical: it parses to itself
    try:
        second = _read(model, document)
    except ArgumentMismatch as error:
        # For example, an alias that is only for parsing.
        raise SchemaFault(
            f"the tool's schema does not read its own output ({error}), so the "
            "arguments that would run are ambiguous"
        ) from error
    # Compared with a second parse, not with the input: a model may write "07".
    again = _written(model, second)
    if not digest.same(document, again):
        place = _first_difference(document, again)
        raise SchemaFault(
            f"the tool's schema reads its output differently at {place}, so the "
            "arguments that would run are ambiguous"
        )
    # Equal documents can hide different values: a type may serialize two values alike.
    lost = model.lost(first, second)
    if lost is not None:
        raise SchemaFault(
            f"the tool's schema does not write {lost!r} the way it reads it, so the "
            "arguments that would run are ambiguous"
        )
    return document


def _read(model: ArgumentModel, given: JsonObject) -> BaseModel:
    try:
        return model.read(given)
    except ValidationError as error:
        raise ArgumentMismatch(
            _error_text(cast("list[Any]", error.errors()))
        ) from error
    except any_failure() as error:
        # A validator may run any code; if it fails, the call does not run.
        raise ArgumentMismatch(
            f"the tool's schema could not read them ({type(error).__name__})"
        ) from error


def _written(model: ArgumentModel, instance: BaseModel) -> JsonObject:
    try:
        written = model.write(instance)
    except SchemaFault:
        raise
    except any_failure() as error:  # a serializer may run any code and raise anything
        raise SchemaFault(
            f"the tool's schema does not write them as JSON ({type(error).__name__}), "
            "so the arguments that would run are ambiguous"
        ) from error
    return _plain(written)


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
