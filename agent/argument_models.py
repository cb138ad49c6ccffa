"""Parse and serialize a tool's arguments with its pydantic model.

LangChain takes models of pydantic 2 and of `pydantic.v1`; `ArgumentModel` is the one
interface to both. Injected arguments are left out. Arguments are written under the
names by which they are read, although a model may have another alias for each.
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
from pydantic import AliasChoices, BaseModel, TypeAdapter, create_model
from pydantic import v1 as pydantic_v1
from pydantic.json_schema import GenerateJsonSchema

from twokey.agent.injected_arguments import (
    MadeOf,
    injected_into,
    without_injected,
)
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.strict_json import JsonObject

_PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types whose values are serialized as what they are."""

_NONE: frozenset[str] = frozenset()


class ArgumentModel(ABC):
    """Parser and serializer of one tool's arguments."""

    def __init__(self, injected: frozenset[str]) -> None:
        self._injected = injected
        # Field name to the name it is parsed by; serialized name to field name.
        self._read_as: dict[str, str] = {}
        self._fields: dict[str, str] = {}

    @abstractmethod
    def read(self, given: JsonObject) -> object:
        """Return an instance of the model; raises what its validators raise."""

    @abstractmethod
    def write(self, instance: object) -> dict[str, Any]:
        """Return an instance as JSON values, under the names that `read` takes."""

    @abstractmethod
    def defaulted(self, instance: object) -> frozenset[str]:
        """Return the names of the arguments that were not given but have a default."""

    @abstractmethod
    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of what `write` returns."""

    def first_difference(
        self, one: object, other: object, *, ignoring: frozenset[str]
    ) -> str | None:
        """Return the first argument in which two instances differ, if any."""
        return next(
            (
                read
                for name, read in sorted(self._read_as.items())
                if read not in ignoring
                and _differ(getattr(one, name), getattr(other, name))
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
    made_of = MadeOf.of(tool)
    return _model_of(tool) if made_of is None else _known_model(made_of)[0]


def read_by(
    tool: BaseTool, args: dict[str, Any]
) -> tuple[ArgumentModel, dict[str, Any]]:
    """Return what reads the arguments of a tool, and those that its caller may give.

    They are ``args`` itself where its caller may give all of them.

    Raises:
        TypeError: when the tool has no pydantic model.
    """
    made_of = MadeOf.of(tool)
    if made_of is None:
        return _model_of(tool), without_injected(tool, args)
    model, injected = _known_model(made_of)
    if injected.isdisjoint(args):
        return model, args
    return model, {name: one for name, one in args.items() if name not in injected}


@lru_cache(maxsize=512)
def _known_model(made_of: MadeOf) -> tuple[ArgumentModel, frozenset[str]]:
    return _model_of(made_of.tool), injected_into(made_of)


def _model_of(tool: BaseTool) -> ArgumentModel:
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
        self._excluded = {*self._injected, *self._model.model_computed_fields}
        config = self._model.model_config
        by_name = config.get("populate_by_name") or config.get("validate_by_name")
        for name, field in self._model.model_fields.items():
            if name in injected:
                continue
            self._fields[field.serialization_alias or name] = name
            alias = field.validation_alias
            if isinstance(alias, AliasChoices):
                # Any alias that the tool parses will do: the first string is taken.
                texts = [one for one in alias.choices if isinstance(one, str)]
                alias = texts[0] if texts else None
            is_named = bool(by_name) or not isinstance(alias, str)
            self._read_as[name] = name if is_named else str(alias)

    def read(self, given: JsonObject) -> BaseModel:
        return self._model.model_validate(given)

    def write(self, instance: object) -> dict[str, Any]:
        model = cast("BaseModel", instance)
        # Computed fields are serialized but not parsed: with them in it, the document
        # could not be parsed again.
        excluded = self._excluded
        if type(model) is not self._model:  # a validator may return another one
            excluded = {*self._injected, *type(model).model_computed_fields}
        shown = model.model_dump(
            mode="json", by_alias=True, exclude=excluded, warnings=False
        )
        # Of plain values alone nothing is left to be normalized.
        is_plain = _PLAIN.issuperset(map(type, vars(model).values()))
        if not is_plain or model.model_extra:
            shown = cast("dict[str, Any]", _normalized(model, shown))
        return self._renamed(shown)

    def defaulted(self, instance: object) -> frozenset[str]:
        return self._unless_given(cast("BaseModel", instance).model_fields_set)

    def json_schema(self) -> dict[str, Any]:
        schema = self._model.model_json_schema(
            mode="serialization", by_alias=True, schema_generator=_SerializedSchema
        )
        names = self._fields
        properties = schema.get("properties", {})
        keys = [key for key in properties if key in names]
        needed = {key for key in schema.get("required", ()) if key in names}
        needed -= {key for key in needed if self._has_bad_default(names[key])}
        schema["properties"] = self._renamed({key: properties[key] for key in keys})
        schema["required"] = [
            self._read_as[names[key]] for key in keys if key in needed
        ]
        return schema

    def _has_bad_default(self, name: str) -> bool:
        # `canonical` leaves such a default out of the document, which would then lack
        # a required property.
        field = self._model.model_fields[name]
        if field.is_required() or field.default_factory is not None:
            return False
        try:
            TypeAdapter(cast("Any", field.annotation)).validate_python(field.default)
        except Exception:  # noqa: BLE001 - pydantic, or validators of somebody else
            return True
        return False


class _SerializedSchema(GenerateJsonSchema):
    """JSON Schema of serialized arguments: fields with a default are required."""

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: ANN401, FBT001 - pydantic's own signature
        if field["type"] == "typed-dict-field":
            return super().field_is_required(field, total)
        return not field.get("serialization_exclude")


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

    def write(self, instance: object) -> dict[str, Any]:
        model = cast("pydantic_v1.BaseModel", instance)
        text = model.json(by_alias=True, exclude=set(self._injected))
        shown = cast("dict[str, Any]", _normalized(model, json.loads(text)))
        return self._renamed(shown)

    def defaulted(self, instance: object) -> frozenset[str]:
        model = cast("pydantic_v1.BaseModel", instance)
        return self._unless_given(model.__fields_set__)

    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = json.loads(self._model.schema_json(by_alias=True))
        # Taken out by hand: pydantic 1 has no schema without some of the fields.
        hidden = {self._model.__fields__[name].alias for name in self._injected}
        properties = {
            key: value
            for key, value in schema.get("properties", {}).items()
            if key not in hidden
        }
        needed = [key for key in schema.get("required", ()) if key not in hidden]
        schema["properties"] = self._renamed(properties)
        schema["required"] = list(self._renamed(dict.fromkeys(needed)))
        return schema


def _differ(one: Any, other: Any) -> bool:  # noqa: ANN401 - a value of any class
    """Return whether two values are known to differ, compared member by member.

    By member, as a union may parse one document as either of two similar classes.
    """
    left, right = _members(one), _members(other)
    if left is not None and right is not None:
        return left.keys() != right.keys() or any(
            _differ(left[name], right[name]) for name in left
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        ours, theirs = cast("list[Any]", one), cast("list[Any]", other)
        pairs = zip(ours, theirs, strict=False)
        return len(ours) != len(theirs) or any(_differ(*pair) for pair in pairs)
    kind: Any = type(cast("object", one))
    # Instances without an `__eq__` are equal only to themselves, so only their classes
    # are compared.
    if kind.__eq__ is object.__eq__:
        return kind is not type(cast("object", other))
    try:
        return bool(cast("Any", one) != other)
    except Exception:  # noqa: BLE001 - arrays and the like; their documents are equal
        return False


def _normalized(value: object, shown: object) -> object:
    """Return a serialized value with secrets revealed and sets sorted.

    Pydantic serializes a secret as stars, which the tool would get. The order of a set
    differs between processes, and would change the hash.
    """
    if type(value) in _PLAIN:
        return shown
    reveal = getattr(value, "get_secret_value", None)
    if callable(reveal) and isinstance(shown, str):
        secret = reveal()
        return secret.decode() if isinstance(secret, bytes) else secret
    if isinstance(shown, dict):
        return _normalized_members(value, cast("dict[str, object]", shown))
    if isinstance(shown, list):
        return _normalized_elements(value, cast("list[object]", shown))
    return shown


def _normalized_members(value: object, shown: dict[str, object]) -> dict[str, object]:
    members = _members(value)
    if members is None:
        return shown
    return {
        key: _normalized(members[key], one) if key in members else one
        for key, one in shown.items()
    }


def _members(value: object) -> dict[str, object] | None:
    """Return the members of a value by their serialized names."""
    if isinstance(value, BaseModel):
        own = {
            field.serialization_alias or name: getattr(value, name, None)
            for name, field in type(value).model_fields.items()
        }
        return {**own, **(value.model_extra or {})}
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
    # A serializer of the tool may have made a list of anything; its parts then belong
    # to no value here.
    if not isinstance(value, list | tuple | set | frozenset | deque):
        return shown
    elements = list(cast("list[object]", value))
    # Likewise one that leaves elements out: which ones is not known.
    if len(elements) != len(shown):
        return shown
    normalized = [
        _normalized(one, row) for one, row in zip(elements, shown, strict=True)
    ]
    if isinstance(value, set | frozenset):
        normalized.sort(key=lambda one: digest.canonical(cast("Any", one)))
    return normalized
