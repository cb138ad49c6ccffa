"""Make of a serialized model what the same model parses to the same values.

Pydantic serializes some values in a way that it does not parse: a secret as stars, a
field of a nested model under a name that is only for output. The order of a set differs
between processes, and would change the hash.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from pydantic import AliasChoices, BaseModel, RootModel
from pydantic import v1 as pydantic_v1

from twokey.gateway.protocol import digest

PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types whose values are serialized as what they are."""


@lru_cache(maxsize=2048)
def read_names(model: type[BaseModel]) -> dict[str, str]:
    """Return the name by which a model parses each of its fields."""
    config = model.model_config
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    names: dict[str, str] = {}
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        if isinstance(alias, AliasChoices):
            # Any alias that the tool parses will do: the first string is taken.
            texts = [one for one in alias.choices if isinstance(one, str)]
            alias = texts[0] if texts else None
        names[name] = alias if isinstance(alias, str) and not by_name else name
    return names


def differ(one: Any, other: Any) -> bool:  # noqa: ANN401 - a value of any class
    """Return whether two values are known to differ, compared member by member.

    By member, as a union may parse one document as either of two similar classes.
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
    """Return the serialized members of a value, each as it is parsed.

    Their names are those of the serialization.
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
    """Return the text of a `Json` whose value holds what has to be normalized."""
    if _members(value) is None and not _is_sequence(value):
        return shown
    try:
        read: object = json.loads(shown)
    except ValueError:  # what a serializer of the tool made of it
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
    # A serializer of the tool may have made a list of anything; its parts then belong
    # to no value here.
    if not _is_sequence(value):
        return shown
    elements = list(cast("list[object]", value))
    # Likewise one that leaves elements out: which ones is not known.
    if len(elements) != len(shown):
        return shown
    rows = [_normalized(one, row) for one, row in zip(elements, shown, strict=True)]
    if isinstance(value, set | frozenset):
        rows.sort(key=lambda one: digest.canonical(cast("Any", one)))
    return rows
