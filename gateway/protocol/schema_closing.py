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

_DECLARING = frozenset({"properties", "patternProperties"})
_DECIDES_REST = frozenset({"additionalProperties", "unevaluatedProperties"})

# Keywords that apply their schemas to child instances (JSON Schema's own term): a
# member, an element.
_CHILD = frozenset({"items", "contains", *_DECIDES_REST, "unevaluatedItems"})
_CHILD_LISTED = frozenset({"prefixItems"})
_CHILD_NAMED = _DECLARING

# Keywords that apply their schemas in place, to the same instance. What ``if`` and
# ``not`` have stays as it is: closing them would let through what they refuse.
_IN_PLACE = frozenset({"then", "else"})
_IN_PLACE_LISTED = frozenset({"allOf", "anyOf", "oneOf"})
_IN_PLACE_NAMED = frozenset({"dependentSchemas", "$defs", "definitions"})
_UNTOUCHED = frozenset({"if", "not", "propertyNames"})
_JOINED = _IN_PLACE | {"allOf", "anyOf", "oneOf", "dependentSchemas", "if", "$ref"}

_MAX_REFERENCES = 16

Visit = Callable[[JsonValue], JsonValue]


def closed(schema: JsonObject) -> JsonObject:
    """Return a schema that refuses keys which no object declares.

    What it lets through may be more than the schema does where that has ``not`` or
    ``oneOf``, so arguments have to fit both.
    """
    return _Closer(schema).close(schema)


def subschemas(
    schema: JsonObject, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], JsonObject]]:
    """Yield a schema and every schema in it, with its path; data in it is left out."""
    yield path, schema
    for key, value in schema.items():
        found: Iterable[tuple[tuple[str | int, ...], JsonValue]] = ()
        if key in _CHILD | _IN_PLACE | _UNTOUCHED:
            found = (((key,), value),)
        elif key in _CHILD_LISTED | _IN_PLACE_LISTED and isinstance(value, list):
            found = (((key, index), one) for index, one in enumerate(value))
        elif key in _CHILD_NAMED | _IN_PLACE_NAMED and isinstance(value, dict):
            found = (((key, name), one) for name, one in value.items())
        for below, one in found:
            if isinstance(one, dict):
                yield from subschemas(one, (*path, *below))


class _Closer:
    def __init__(self, root: JsonObject) -> None:
        self._root = root

    def close(self, node: JsonObject) -> JsonObject:
        """Close a schema that is the only one applied to its instance."""
        result = self._inside(node)
        if self._declares(node, 0) and not _DECIDES_REST & node.keys():
            is_plain = not _JOINED & node.keys()
            # `additionalProperties` sees only the properties beside it; with `allOf` or
            # `$ref` in the same schema it would refuse what those declare. It is
            # cheaper, so it is taken where it is enough.
            word = "additionalProperties" if is_plain else "unevaluatedProperties"
            result[word] = False
        return result

    def _inside(self, node: JsonObject) -> JsonObject:
        """Close the schemas of children, not this one: others apply in place, too."""
        return {key: self._member(key, value) for key, value in node.items()}

    def _member(self, key: str, value: JsonValue) -> JsonValue:
        visit = self._each(self.close)
        # Not closed themselves: each branch would refuse what the schema around it
        # declares.
        if key in _IN_PLACE | _IN_PLACE_LISTED | _IN_PLACE_NAMED:
            visit = self._each(self._inside)
        if key in _CHILD | _IN_PLACE:
            return visit(value)
        if key in _CHILD_LISTED | _IN_PLACE_LISTED and isinstance(value, list):
            return [visit(element) for element in value]
        if key in _CHILD_NAMED | _IN_PLACE_NAMED and isinstance(value, dict):
            return {name: visit(member) for name, member in value.items()}
        return value

    @staticmethod
    def _each(change: Callable[[JsonObject], JsonObject]) -> Visit:
        return lambda node: change(node) if isinstance(node, dict) else node

    def _declares(self, node: JsonValue, level: int) -> bool:
        """Return whether a schema declares keys, itself or where it refers to."""
        # A schema may refer to itself.
        if not isinstance(node, dict) or level > _MAX_REFERENCES:
            return False
        if _DECLARING & node.keys():
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
