"""Close a JSON Schema: reject properties that it does not declare.

JSON Schema (2020-12) lets every key through that a schema does not mention. Here a key
that nobody declared is refused, unless the schema says ``additionalProperties`` or
``unevaluatedProperties`` itself. An object that declares no key at all stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pydantic import JsonValue

from twokey.gateway.protocol.pointers import pointed
from twokey.gateway.protocol.strict_json import JsonObject

_OWN = frozenset({"properties", "patternProperties"})
_SAYS = frozenset({"additionalProperties", "unevaluatedProperties"})

# Keywords whose schemas are about another place: a member, an element.
_PLACES = frozenset({"items", "contains", *_SAYS, "unevaluatedItems"})
_PLACES_LISTED = frozenset({"prefixItems"})
_PLACES_NAMED = _OWN

# Keywords whose schemas are about the same place. What ``if`` and ``not`` have stays as
# it is: closing them would let through what they refuse.
_SAME = frozenset({"then", "else"})
_SAME_LISTED = frozenset({"allOf", "anyOf", "oneOf"})
_SAME_NAMED = frozenset({"dependentSchemas", "$defs", "definitions"})
_UNTOUCHED = frozenset({"if", "not", "propertyNames"})
_JOINED = _SAME | {"allOf", "anyOf", "oneOf", "dependentSchemas", "if", "$ref"}

_MAX_REFERENCES = 16

Visit = Callable[[JsonValue], JsonValue]


def closed(schema: JsonObject) -> JsonObject:
    """Return a schema that refuses keys which no object declares.

    What it lets through may be more than the schema does where that has ``not`` or
    ``oneOf``, so arguments have to fit both.
    """
    return _Closing(schema).place(schema)


def subschemas(
    schema: JsonObject, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], JsonObject]]:
    """Yield a schema and every schema in it, with its path; data in it is left out."""
    yield path, schema
    for key, value in schema.items():
        found: Iterable[tuple[tuple[str | int, ...], JsonValue]] = ()
        if key in _PLACES | _SAME | _UNTOUCHED:
            found = (((key,), value),)
        elif key in _PLACES_LISTED | _SAME_LISTED and isinstance(value, list):
            found = (((key, index), one) for index, one in enumerate(value))
        elif key in _PLACES_NAMED | _SAME_NAMED and isinstance(value, dict):
            found = (((key, name), one) for name, one in value.items())
        for below, one in found:
            if isinstance(one, dict):
                yield from subschemas(one, (*path, *below))


class _Closing:
    def __init__(self, root: JsonObject) -> None:
        self._root = root

    def place(self, node: JsonObject) -> JsonObject:
        """Close a schema that is the only one about its place."""
        result = self._inside(node)
        if self._declares(node, 0) and not _SAYS & node.keys():
            is_plain = not _JOINED & node.keys()
            word = "additionalProperties" if is_plain else "unevaluatedProperties"
            result[word] = False
        return result

    def _inside(self, node: JsonObject) -> JsonObject:
        """Close the places below a schema, not its own: others are about that, too."""
        return {key: self._member(key, value) for key, value in node.items()}

    def _member(self, key: str, value: JsonValue) -> JsonValue:
        visit = self._each(self.place)
        if key in _SAME | _SAME_LISTED | _SAME_NAMED:
            visit = self._each(self._inside)
        if key in _PLACES | _SAME:
            return visit(value)
        if key in _PLACES_LISTED | _SAME_LISTED and isinstance(value, list):
            return [visit(element) for element in value]
        if key in _PLACES_NAMED | _SAME_NAMED and isinstance(value, dict):
            return {name: visit(member) for name, member in value.items()}
        return value

    @staticmethod
    def _each(change: Callable[[JsonObject], JsonObject]) -> Visit:
        return lambda node: change(node) if isinstance(node, dict) else node

    def _declares(self, node: JsonValue, level: int) -> bool:
        """Return whether a schema declares keys, itself or where it refers to."""
        if not isinstance(node, dict) or level > _MAX_REFERENCES:
            return False
        if _OWN & node.keys():
            return True
        reference = node.get("$ref")
        if isinstance(reference, str):
            target = self._target(reference)
            # A target that is not found here may name keys: closing is the strict side.
            if target is None or self._declares(target, level + 1):
                return True
        if any(self._declares(one, level + 1) for one in _list(node.get("allOf"))):
            return True
        return any(
            self._choice_declares(_list(node.get(key)), level + 1)
            for key in ("anyOf", "oneOf")
        )

    def _choice_declares(self, branches: list[JsonValue], level: int) -> bool:
        """Return whether every branch declares keys; other types do not matter."""
        found = [one for one in branches if _may_be_object(one)]
        return bool(found) and all(self._declares(one, level) for one in found)

    def _target(self, reference: str) -> JsonValue:
        """Return what a JSON Pointer leads to; None when it leads nowhere known."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        return pointed(self._root, reference)


def _may_be_object(node: JsonValue) -> bool:
    if not isinstance(node, dict):
        return node is not False
    kinds = node.get("type", "object")
    return "object" in (kinds if isinstance(kinds, list) else [kinds])


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
