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

import dataclasses
import json
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import Signature
from typing import Any, cast
from weakref import WeakKeyDictionary

from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.tools.base import _get_runnable_config_param  # pyright: ignore[reportPrivateUsage] - LangChain's own notion of it
from pydantic import (
    AliasChoices,
    BaseModel,
    JsonValue,
    RootModel,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError

from keyturn.gateway.errors import BadJson, InexactNumber
from keyturn.gateway.failures import any_failure
from keyturn.gateway.protocol import digest, strict_json
from keyturn.gateway.protocol.parameters import signature_of
from keyturn.gateway.protocol.records import EditRecord
from keyturn.gateway.protocol.schema_validation import checkable, problems
from keyturn.gateway.protocol.strict_json import JsonObject


class ArgumentMismatch(ValueError):
    """Arguments do not fit their tool; the text describes the mismatch as a clause."""


class SchemaFault(ArgumentMismatch):
    """A tool's schema does not parse its own output: no corrected call helps."""


# Serialize a tool's arguments so that its model parses them to the same values.
#
# Arguments are serialized under the names by which they are parsed, although a model
# may have another alias for output. Values that pydantic serializes in a form that it
# does not parse get the form that it parses: a secret is written as asterisks, a field
# of a nested model under an output-only name. The order of a set differs between
# processes, and would change the hash, so sets are sorted.

PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types whose values serialize as themselves."""


@lru_cache(maxsize=2048)
def read_names(model: type[BaseModel]) -> dict[str, str]:
    """Return the name by which a model parses each of its fields."""
    config = model.model_config
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    names: dict[str, str] = {}
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        if isinstance(alias, AliasChoices):
            # The tool parses any of its aliases; the first string is used.
            texts = [one for one in alias.choices if isinstance(one, str)]
            alias = texts[0] if texts else None
        names[name] = alias if isinstance(alias, str) and not by_name else name
    return names


def differ(one: Any, other: Any) -> bool:  # noqa: ANN401 - a value of any class
    """Return True if two values are known to differ, compared member by member.

    Members are compared because a union may parse one document as either of two similar
    classes.
    """
    left, right = _members(one), _members(other)
    if left is not None and right is not None:
        return left.keys() != right.keys() or any(
            differ(left[name], right[name]) for name in left
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        ours, theirs = cast("list[Any]", one), cast("list[Any]", other)
        pairs = zip(ours, theirs, strict=False)
        return len(ours) != len(theirs) or any(differ(*pair) for pair in pairs)
    kind: Any = type(cast("object", one))
    # Instances without an `__eq__` are equal only to themselves, so only their classes
    # are compared.
    if kind.__eq__ is object.__eq__:
        return kind is not type(cast("object", other))
    try:
        return bool(cast("Any", one) != other)
    except Exception:  # noqa: BLE001 - arrays and the like; their documents are equal
        return False


def normalized(value: object, shown: dict[str, Any]) -> dict[str, Any]:
    """Return the serialized members of a value, each in the form that parses.

    Keys keep their serialized names.
    """
    members = _members(value)
    if members is None:
        return shown
    return {
        key: _normalized(members[key], one) if key in members else one
        for key, one in shown.items()
    }


def _normalized(value: object, shown: object) -> object:
    if type(value) in PLAIN:
        return shown
    while isinstance(value, RootModel):
        value = cast("Any", value).root
    reveal = getattr(value, "get_secret_value", None)
    if callable(reveal) and isinstance(shown, str):
        secret = reveal()
        return secret.decode() if isinstance(secret, bytes) else secret
    match shown:
        case dict():
            return _as_read(value, normalized(value, cast("dict[str, Any]", shown)))
        case list():
            return _normalized_elements(value, cast("list[object]", shown))
        case str():
            return _normalized_text(value, shown)
        case _:
            return shown


def _as_read(value: object, shown: dict[str, Any]) -> dict[str, Any]:
    """Return a serialized model under the names by which it is parsed."""
    if not isinstance(value, BaseModel):
        return shown
    fields = type(value).model_fields
    names = {
        fields[name].serialization_alias or name: read
        for name, read in read_names(type(value)).items()
    }
    return {names.get(key, key): one for key, one in shown.items()}


def _normalized_text(value: object, shown: str) -> str:
    """Return the text of a `Json` value, with its content normalized."""
    if _members(value) is None and not _is_sequence(value):
        return shown
    try:
        read: object = json.loads(shown)
    except ValueError:  # a custom serializer's output
        return shown
    changed = _normalized(value, read)
    if changed == read:
        return shown
    return json.dumps(changed, ensure_ascii=False, separators=(",", ":"))


def _is_sequence(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset | deque)


def _members(value: object) -> dict[str, object] | None:
    """Return the members of a value by their serialized names."""
    if isinstance(value, BaseModel):
        own = {
            field.serialization_alias or name: getattr(value, name, None)
            for name, field in type(value).model_fields.items()
        }
        return {**(value.model_extra or {}), **own}
    if isinstance(value, Mapping):
        rows = cast("Mapping[object, Any]", value)
        return {str(key): one for key, one in rows.items()}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name) for name in names}
    return None


def _normalized_elements(value: object, shown: list[object]) -> list[object]:
    # A custom serializer may turn any value into a list, whose items then match no
    # elements here.
    if not _is_sequence(value):
        return shown
    elements = list(cast("list[object]", value))
    # The same applies to a serializer that omits elements: the positions are unknown.
    if len(elements) != len(shown):
        return shown
    rows = [_normalized(one, row) for one, row in zip(elements, shown, strict=True)]
    if isinstance(value, set | frozenset):
        rows.sort(key=lambda one: digest.canonical(cast("Any", one)))
    return rows


class ArgumentModel:
    """Parser and serializer of one tool's arguments."""

    def __init__(self, schema: type[BaseModel], injected: frozenset[str]) -> None:
        self.injected = injected
        # Field name to its parsed name; serialized name to field name.
        self._read_as: dict[str, str] = {}
        self._fields: dict[str, str] = {}
        self._model = schema
        if injected:
            # Optional: the model (LLM) never gives injected arguments; the runtime adds
            # them later.
            anything: dict[str, Any] = dict.fromkeys(injected, (Any, None))
            self._model = create_model(schema.__name__, __base__=schema, **anything)
        for name, read in read_names(self._model).items():
            if name not in injected:
                field = self._model.model_fields[name]
                self._fields[field.serialization_alias or name] = name
                self._read_as[name] = read

    def read(self, given: JsonObject) -> BaseModel:
        """Parse arguments into an instance of the model; raises validators' errors."""
        return self._model.model_validate(given)

    def write(
        self, instance: BaseModel, *, without: AbstractSet[str] = frozenset()
    ) -> dict[str, Any]:
        """Return an instance as JSON values, under the names that `read` accepts.

        Raises any serializer's error, including custom ones.
        """
        omitted = {name for name, read in self._read_as.items() if read in without}
        # The same shape as the input: without computed fields, which are serialized but
        # not parsed, and with `Json` as text.
        shown = instance.model_dump(
            mode="json",
            by_alias=True,
            exclude={*self.injected, *omitted},
            round_trip=True,
            warnings=False,
        )
        # Plain values need no normalization.
        is_plain = PLAIN.issuperset(map(type, vars(instance).values()))
        if not is_plain or instance.model_extra:
            shown = normalized(instance, shown)
        read_as = {key: self._read_as[name] for key, name in self._fields.items()}
        return {read_as.get(key, key): value for key, value in shown.items()}

    def write_one(self, instance: BaseModel, name: str) -> dict[str, Any]:
        """Return one argument as `write` serializes it; raises the same errors."""
        return self.write(instance, without=self.names - {name})

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that `read` accepts."""
        return frozenset(self._read_as.values())

    def field_names(self, document: JsonObject) -> frozenset[str]:
        """Return the names of the fields in a document that uses parsed names."""
        fields = {read: name for name, read in self._read_as.items()}
        return frozenset(fields.get(name, name) for name in document)

    def defaulted(self, instance: BaseModel) -> frozenset[str]:
        """Return the names of the arguments that were omitted and have a default."""
        given = instance.model_fields_set
        return frozenset(
            read for name, read in self._read_as.items() if name not in given
        )

    def first_difference(
        self, one: BaseModel, other: BaseModel, *, ignoring: frozenset[str]
    ) -> str | None:
        """Return the first argument in which two instances differ, or None."""
        return next(
            (
                read
                for name, read in sorted(self._read_as.items())
                if read not in ignoring
                and differ(getattr(one, name), getattr(other, name))
            ),
            None,
        )

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the output of `write`."""
        schema = self._model.model_json_schema(
            mode="serialization", by_alias=True, schema_generator=_SerializedSchema
        )
        names = {read: name for name, read in self._read_as.items()}
        properties = schema.get("properties", {})
        keys = [key for key in properties if key in names]
        needed = {key for key in schema.get("required", ()) if key in names}
        needed -= {key for key in needed if self._has_bad_default(names[key])}
        schema["properties"] = {key: properties[key] for key in keys}
        schema["required"] = [key for key in keys if key in needed]
        return schema

    def _has_bad_default(self, name: str) -> bool:
        # `canonical_args` omits such a default from the document, which would then lack
        # a required property.
        field = self._model.model_fields[name]
        if field.is_required() or field.default_factory is not None:
            return False
        try:
            kind = TypeAdapter(cast("Any", field.annotation))
            kind.validate_python(field.default)
            strict_json.accept(
                kind.dump_python(field.default, mode="json", warnings=False)
            )
        except Exception:  # noqa: BLE001 - pydantic, or a custom validator
            return True
        return False


def argument_model(tool: BaseTool) -> ArgumentModel:
    """Return the parser and serializer of a tool's arguments, cached per model.

    Raises:
        SchemaFault: when the tool has no model of pydantic 2.
    """
    schema: object = tool.args_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        raise SchemaFault(
            f"the tool {tool.name!r} has no model of pydantic 2 of its arguments; "
            "declare them with pydantic.BaseModel"
        )
    names = frozenset(schema.model_fields)
    given = without_injected(tool, dict.fromkeys(names))
    return _cached_model(schema, names.difference(given))


@lru_cache(maxsize=512)
def _cached_model(schema: type[BaseModel], injected: frozenset[str]) -> ArgumentModel:
    return ArgumentModel(schema, injected)


def passed_names(
    tool: BaseTool, document: JsonObject
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the field names a function gets for a document, and the injected names."""
    if not isinstance(tool.args_schema, type):
        return frozenset(document), frozenset()
    model = argument_model(tool)
    return model.field_names(document), model.injected


class _SerializedSchema(GenerateJsonSchema):
    """JSON Schema of the output of `write`: fields with a default are required."""

    # A default that JSON cannot represent is omitted, as it is from the document.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - pydantic's own
        super().__init__(**options)
        self._models: list[type] = []

    def encode_default(self, dft: Any) -> Any:  # noqa: ANN401 - pydantic's own signature
        encoded = super().encode_default(dft)
        try:
            return strict_json.accept(encoded)
        except BadJson as error:
            raise PydanticSerializationError(str(error)) from error

    def model_schema(self, schema: Any) -> Any:  # noqa: ANN401 - pydantic's own signature
        self._models.append(schema["cls"])
        try:
            return super().model_schema(schema)
        finally:
            self._models.pop()

    def model_fields_schema(self, schema: Any) -> Any:  # noqa: ANN401 - pydantic's own signature
        names = read_names(self._models[-1])
        fields = {
            name: {**field, "serialization_alias": names.get(name, name)}
            for name, field in schema["fields"].items()
        }
        made: Any = {**schema, "fields": fields, "computed_fields": []}
        return super().model_fields_schema(made)

    def dataclass_args_schema(self, schema: Any) -> Any:  # noqa: ANN401 - pydantic's own signature
        made: Any = {**schema, "computed_fields": []}
        return super().dataclass_args_schema(made)

    def decimal_schema(self, schema: Any) -> Any:  # noqa: ANN401, ARG002 - pydantic's own signature
        # Pydantic's pattern uses look-ahead, which no edit form can check.
        return {"type": "string", "format": "decimal"}

    def json_schema(self, schema: Any) -> Any:  # noqa: ANN401, ARG002 - pydantic's own signature
        return {"type": "string", "contentMediaType": "application/json"}

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: ANN401, FBT001 - pydantic's own signature
        if field["type"] == "typed-dict-field":
            return super().field_is_required(field, total)
        is_left_out = field.get("serialization_exclude_if") is not None
        return not field.get("serialization_exclude") and not is_left_out


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


_KNOWN = WeakKeyDictionary[Callable[..., Any], dict[tuple[None, ...], _Takes | None]]()
"""Functions that were inspected. Weak: a program may make tools for each user."""


def _takes(function: Callable[..., Any], first: tuple[None, ...]) -> _Takes | None:
    """Return how a function is called; None if it has no signature."""
    # Each call is bound twice, and a signature takes longer than the rest of the check.
    try:
        known = _KNOWN.setdefault(function, {})
    except TypeError:  # the callable has no hash, or no weak reference
        return _inspected(function, first)
    if first not in known:
        known[first] = _inspected(function, first)
    return known[first]


def _inspected(function: Callable[..., Any], first: tuple[None, ...]) -> _Takes | None:
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


def _read_again(
    model: ArgumentModel, written: JsonObject
) -> tuple[BaseModel, JsonObject]:
    try:
        return _read(model, written)
    except ArgumentMismatch as error:
        # For example, an alias of a nested model that is only for parsing.
        raise SchemaFault(
            f"the tool's schema does not read its own output ({error}), so the "
            "arguments that would run are ambiguous"
        ) from error


def _read(model: ArgumentModel, given: JsonObject) -> tuple[BaseModel, JsonObject]:
    """Return arguments parsed by the schema, and serialized again."""
    try:
        instance = model.read(given)
    except ValidationError as error:
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
    model: ArgumentModel, instance: BaseModel, defaulted: frozenset[str]
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
    except ValidationError as error:
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
