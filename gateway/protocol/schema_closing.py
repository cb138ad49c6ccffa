"""Close a JSON Schema: reject properties that it does not declare.

JSON Schema (2020-12) lets every key through that a schema does not mention. Here a key
that nobody declared is refused, unless the schema says ``additionalProperties`` or
``unevaluatedProperties`` itself. An object that declares no key at all stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pydantic import JsonValue

from keyturn.gateway.protocol.strict_json import JsonObject, pointed
from keyturn.gateway.protocol.work import spend

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
SAME_INSTANCE = _IN_PLACE | _IN_PLACE_LISTED | {"if", "not", "dependentSchemas"}
"""Keywords whose schemas look at the instance that the schema around them looks at."""
_JOINED = _IN_PLACE | {"allOf", "anyOf", "oneOf", "dependentSchemas", "if", "$ref"}

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
    for below, one in members(schema):
        yield from subschemas(one, (*path, *below))


def members(
    schema: JsonObject,
) -> Iterator[tuple[tuple[str | int, ...], JsonObject]]:
    """Yield the schemas that the keywords of a schema have, with their paths in it."""
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
                yield below, one


class _Closer:
    def __init__(self, root: JsonObject) -> None:
        self._root = root
        # By identity. False while it is worked out: a schema may refer to itself.
        self._declaring = dict[int, bool]()

    def close(self, node: JsonObject) -> JsonObject:
        """Close a schema that is the only one applied to its instance."""
        result = self._inside(node)
        spend(1)
        if self._declares(node) and not _DECIDES_REST & node.keys():
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

    def _declares(self, node: JsonValue) -> bool:
        """Return whether a schema declares keys, itself or where it refers to."""
        if not isinstance(node, dict):
            return False
        if id(node) not in self._declaring:
            spend(1)
            self._declaring[id(node)] = False
            self._declaring[id(node)] = self._works_out(node)
        return self._declaring[id(node)]

    def _works_out(self, node: JsonObject) -> bool:
        if _DECLARING & node.keys():
            return True
        reference = node.get("$ref")
        if isinstance(reference, str):
            target = self._target(reference)
            # A target that is not found here may name keys: closing is the strict side.
            if target is None or self._declares(target):
                return True
        if any(map(self._declares, _list(node.get("allOf")))):
            return True
        return any(
            self._choice_declares(_list(node.get(key))) for key in ("anyOf", "oneOf")
        )

    def _choice_declares(self, branches: list[JsonValue]) -> bool:
        """Return whether every branch declares keys; other types do not matter."""
        found = [one for one in branches if _may_be_object(one)]
        return bool(found) and all(map(self._declares, found))

    def _target(self, reference: str) -> JsonValue:
        """Return what a JSON Pointer leads to; None when it leads nowhere known."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        spend(len(reference) // 8)
        return pointed(self._root, reference)


def _may_be_object(node: JsonValue) -> bool:
    if not isinstance(node, dict):
        return node is not False
    kinds = node.get("type", "object")
    return "object" in (kinds if isinstance(kinds, list) else [kinds])


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
