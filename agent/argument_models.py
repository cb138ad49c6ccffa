"""Parse and serialize a tool's arguments with its pydantic model.

LangChain accepts models of pydantic 2 and of `pydantic.v1`; `ArgumentModel` is one
interface to both. Injected arguments are excluded. Arguments are serialized under the
names by which they are parsed, although a model may have another alias for output.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache
from typing import Any, cast

from langchain_core.tools import BaseTool
from pydantic import AliasChoices, BaseModel, RootModel, TypeAdapter, create_model
from pydantic import v1 as pydantic_v1
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError

from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import digest, strict_json
from keyturn.gateway.protocol.strict_json import JsonObject

# Normalize a serialized model so that the same model parses it to the same values.
#
# Pydantic serializes some values in a form that it does not parse: a secret as
# asterisks, a field of a nested model under an output-only name. The order of a set
# differs between processes, and would change the hash.

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
    if isinstance(value, pydantic_v1.BaseModel):
        fields = type(value).__fields__
        named = {name: field.alias for name, field in fields.items()}
        return {named.get(name, name): one for name, one in value.__dict__.items()}
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


_NONE: frozenset[str] = frozenset()


class ArgumentModel(ABC):
    """Parser and serializer of one tool's arguments."""

    def __init__(self, injected: frozenset[str]) -> None:
        self.injected = injected
        # Field name to its parsed name; serialized name to field name.
        self._read_as: dict[str, str] = {}
        self._fields: dict[str, str] = {}

    @abstractmethod
    def read(self, given: JsonObject) -> object:
        """Parse arguments into an instance of the model; raises validators' errors."""

    @abstractmethod
    def write(
        self, instance: object, *, without: AbstractSet[str] = _NONE
    ) -> dict[str, Any]:
        """Return an instance as JSON values, under the names that `read` accepts.

        Raises any serializer's error, including custom ones.
        """

    @abstractmethod
    def defaulted(self, instance: object) -> frozenset[str]:
        """Return the names of the arguments that were omitted and have a default."""

    @abstractmethod
    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the output of `write`."""

    def field_names(self, document: JsonObject) -> frozenset[str]:
        """Return the names of the fields in a document that uses parsed names."""
        fields = {read: name for name, read in self._read_as.items()}
        return frozenset(fields.get(name, name) for name in document)

    def write_one(self, instance: object, name: str) -> dict[str, Any]:
        """Return one argument as `write` serializes it; raises the same errors."""
        return self.write(instance, without=self.names - {name})

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that `read` accepts."""
        return frozenset(self._read_as.values())

    def _not_written(self, without: AbstractSet[str]) -> set[str]:
        if not without:
            return set(self.injected)
        fields = {name for name, read in self._read_as.items() if read in without}
        return {*self.injected, *fields}

    def first_difference(
        self, one: object, other: object, *, ignoring: frozenset[str]
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

    def _unless_given(self, given: AbstractSet[str]) -> frozenset[str]:
        if self._read_as.keys() <= given:
            return _NONE
        return frozenset(
            read for name, read in self._read_as.items() if name not in given
        )

    def _renamed(self, written: dict[str, Any]) -> dict[str, Any]:
        names = self._other_names
        if not names:
            return written
        return {names.get(key, key): value for key, value in written.items()}

    @cached_property
    def _other_names(self) -> dict[str, str]:
        pairs = ((key, self._read_as[name]) for key, name in self._fields.items())
        return {key: read for key, read in pairs if key != read}


def argument_model(tool: BaseTool) -> ArgumentModel:
    """Return the parser and serializer of a tool's arguments, cached per model.

    Raises:
        TypeError: when the tool has no pydantic model.
    """
    schema: object = tool.args_schema
    if not isinstance(schema, type):
        raise TypeError(f"The tool {tool.name!r} has no model of its arguments.")
    names = (
        tuple(schema.model_fields)
        if issubclass(schema, BaseModel)
        else tuple(cast("Any", schema).__fields__)
    )
    given = without_injected(tool, dict.fromkeys(names))
    return _cached_model(schema, frozenset(names).difference(given))


def passed_names(
    tool: BaseTool, document: JsonObject
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the field names a function gets for a document, and the injected names."""
    if not isinstance(tool.args_schema, type):
        return frozenset(document), _NONE
    model = argument_model(tool)
    return model.field_names(document), model.injected


@lru_cache(maxsize=512)
def _cached_model(schema: type, injected: frozenset[str]) -> ArgumentModel:
    if issubclass(schema, BaseModel):
        return _Model(schema, injected)
    return _ModelV1(cast("type[pydantic_v1.BaseModel]", schema), injected)


class _Model(ArgumentModel):
    """A model of pydantic 2."""

    def __init__(self, schema: type[BaseModel], injected: frozenset[str]) -> None:
        super().__init__(injected)
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
        return self._model.model_validate(given)

    def write(
        self, instance: object, *, without: AbstractSet[str] = _NONE
    ) -> dict[str, Any]:
        model = cast("BaseModel", instance)
        # The same shape as the input: without computed fields, which are serialized but
        # not parsed, and with `Json` as text.
        shown = model.model_dump(
            mode="json",
            by_alias=True,
            exclude=self._not_written(without),
            round_trip=True,
            warnings=False,
        )
        # Plain values need no normalization.
        is_plain = PLAIN.issuperset(map(type, vars(model).values()))
        if not is_plain or model.model_extra:
            shown = normalized(model, shown)
        return self._renamed(shown)

    def defaulted(self, instance: object) -> frozenset[str]:
        return self._unless_given(cast("BaseModel", instance).model_fields_set)

    def json_schema(self) -> dict[str, Any]:
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
        # `canonical` omits such a default from the document, which would then lack a
        # required property.
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


class _ModelV1(ArgumentModel):
    """A model of `pydantic.v1`."""

    def __init__(
        self, schema: type[pydantic_v1.BaseModel], injected: frozenset[str]
    ) -> None:
        super().__init__(injected)
        self._model = schema
        if injected:
            anything: Any = dict.fromkeys(injected, (Any, None))
            create: Any = cast("Any", pydantic_v1).create_model
            self._model = create(schema.__name__, __base__=schema, **anything)
        by_name = self._model.__config__.allow_population_by_field_name
        self._read_as = {
            name: name if by_name else field.alias
            for name, field in self._model.__fields__.items()
            if name not in injected
        }
        self._fields = {
            self._model.__fields__[name].alias: name for name in self._read_as
        }

    def read(self, given: JsonObject) -> pydantic_v1.BaseModel:
        return self._model.parse_obj(given)

    def write(
        self, instance: object, *, without: AbstractSet[str] = _NONE
    ) -> dict[str, Any]:
        model = cast("pydantic_v1.BaseModel", instance)
        text = model.json(by_alias=True, exclude=self._not_written(without))
        shown = normalized(model, json.loads(text))
        return self._renamed(shown)

    def defaulted(self, instance: object) -> frozenset[str]:
        model = cast("pydantic_v1.BaseModel", instance)
        return self._unless_given(model.__fields_set__)

    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = json.loads(self._model.schema_json(by_alias=True))
        # Removed by hand: pydantic 1 cannot generate a schema without some fields.
        hidden = {self._model.__fields__[name].alias for name in self.injected}
        properties = {
            key: value
            for key, value in schema.get("properties", {}).items()
            if key not in hidden
        }
        needed = [key for key in schema.get("required", ()) if key not in hidden]
        schema["properties"] = self._renamed(properties)
        schema["required"] = list(self._renamed(dict.fromkeys(needed)))
        return schema


def without_injected(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments without those that LangChain injects."""
    found: dict[str, Any] = tool._filter_injected_args(dict(args))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - LangChain's own notion of injected
    return found
