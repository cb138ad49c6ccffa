"""Describe a tool's canonical arguments as JSON Schema, for edit forms and checks.

A reviewer's edit is checked against this by a gateway that has no pydantic, so it
describes what the canonical document looks like: the names that the tool reads, every
default filled in. What it cannot say is checked again before the tool runs.
"""

from __future__ import annotations

from functools import lru_cache

from langchain_core.tools import BaseTool
from pydantic.errors import PydanticInvalidForJsonSchema

from twokey.agent.argument_models import ArgumentModel, argument_model
from twokey.gateway.errors import BadJson
from twokey.gateway.protocol import strict_json
from twokey.gateway.protocol.schema_validation import checkable
from twokey.gateway.protocol.strict_json import JsonObject


def schema_of(tool: BaseTool | None) -> JsonObject | None:
    """Return the JSON Schema of a tool's canonical arguments; None: it has none."""
    if tool is None or tool.args_schema is None:
        return None
    given = tool.args_schema
    try:
        if isinstance(given, dict):
            return checkable(strict_json.accept_object(given))
        described = strict_json.accept(tool.description)
        return {**_schema(argument_model(tool)), "description": described}
    except (BadJson, PydanticInvalidForJsonSchema):
        return None


# It is declared with every turn, and making it takes longer than submitting the turn.
@lru_cache(maxsize=512)
def _schema(model: ArgumentModel) -> JsonObject:
    return checkable(strict_json.accept_object(model.json_schema()))
