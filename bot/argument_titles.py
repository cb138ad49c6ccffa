"""Read the title and the unit that a JSON Schema gives an argument.

Both are shown beside the argument's own name and never instead of it: the name is what
the tool gets, and a title may come from the agent's process.
"""

from __future__ import annotations

from pydantic import JsonValue

from twokey.gateway.protocol.strict_json import JsonObject

UNIT = "x-unit"
"""The keyword of a unit. JSON Schema 2020-12 keeps names with ``x-`` for extensions:
https://json-schema.org/draft/2020-12/json-schema-core#section-6.5"""


def title_of(name: str, schema: JsonValue) -> str:
    """Return title and unit as they came, such as ``Refund, EUR``; "" without both.

    Args:
        name: of the argument. A title that only spells it in another way, such as the
            ones that pydantic makes, is left out.
        schema: of the argument; anything that is not an object says nothing.
    """
    if not isinstance(schema, dict):
        return ""
    title, unit = _text(schema.get("title")), _text(schema.get(UNIT))
    says_more = _letters(title) not in {"", _letters(name)}
    return ", ".join(filter(None, [title if says_more else "", unit]))


def argument_titles(schema: JsonObject | None) -> dict[str, str]:
    """Return the title and unit of each declared argument, in the schema's order."""
    declared = (schema or {}).get("properties")
    items = declared.items() if isinstance(declared, dict) else ()
    return {name: title_of(name, one) for name, one in items}


def _text(value: JsonValue) -> str:
    # On one line and without gaps: what follows a gap would read as a value.
    return " ".join(value.split()) if isinstance(value, str) else ""


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()
