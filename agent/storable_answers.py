"""Make an answer of the model one that a checkpoint can hold.

LangGraph's format ends at whole numbers of 64 bits and at some depth, and takes no half
of a surrogate pair in a key. A call with any of these is refused and goes back to the
model; the run would end with an error before the model reads why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from langchain.agents.middleware.types import ModelResponse
from langchain_core.messages import AIMessage

from twokey.agent.turns import printable
from twokey.gateway.protocol import strict_json

_DEEPEST = strict_json.MAX_DEPTH + 8
"""Deeper than what is refused, with what stands around the arguments of a call."""


def storable(answer: ModelResponse[Any]) -> ModelResponse[Any]:
    """Return the answer with nothing in its calls that a checkpoint cannot hold.

    A number that is too large becomes a text with all its digits.
    """
    result = [
        message.model_copy(
            update={
                "content": _storable(message.content, 0),
                "tool_calls": _storable(message.tool_calls, 0),
            }
        )
        if isinstance(message, AIMessage)
        else message
        for message in answer.result
    ]
    return replace(answer, result=result)


def _storable(value: object, depth: int) -> object:
    if isinstance(value, dict | list) and depth > _DEEPEST:
        return "…"
    if isinstance(value, dict):
        members = cast("Mapping[str, object]", value)
        return {
            printable(name): _storable(one, depth + 1) for name, one in members.items()
        }
    if isinstance(value, list):
        return [_storable(one, depth + 1) for one in cast("list[object]", value)]
    is_large = isinstance(value, int) and not -(2**63) <= value < 2**64
    return str(value) if is_large else value
