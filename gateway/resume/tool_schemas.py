"""Describe the arguments of a graph's tools, for the forms of edits."""

from __future__ import annotations

from langchain_core.tools import BaseTool
from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from keyturn.gateway.errors import BadJson
from keyturn.gateway.gates.reachable import reachable
from keyturn.gateway.protocol.schema_validation import checkable
from keyturn.gateway.protocol.strict_json import JsonObject, accept_object


def schemas_of(graph: object) -> dict[str, JsonObject]:
    """Return the JSON Schema of the arguments of a graph's tools, by name.

    Tools of one name that take different arguments are left out.
    """
    found: dict[str, JsonObject | None] = {}
    for tool in reachable(graph).known:
        schema = _schema(tool)
        is_same = found.setdefault(tool.name, schema) == schema
        found[tool.name] = schema if is_same else None
    return {name: one for name, one in found.items() if one is not None}


def _schema(tool: BaseTool) -> JsonObject | None:
    # As the model sees it: without what LangGraph injects.
    given: object = tool.tool_call_schema
    try:
        if isinstance(given, type) and issubclass(given, BaseModel):
            given = given.model_json_schema()
        return checkable(accept_object(given))
    except (BadJson, PydanticInvalidForJsonSchema):
        return None
