"""Injected arguments are recognized for each tool."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import pytest
from langchain_core.tools import StructuredTool, tool
from langgraph.prebuilt import InjectedState
from pydantic import BaseModel, field_validator

from keyturn.agent.canonical import ArgumentMismatch, caller_args, canonical_args
from keyturn.gateway.protocol.strict_json import JsonObject


def test_what_is_injected_is_told_apart_by_function_and_by_schema() -> None:
    def peek(n: int, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Peek."""
        return f"{n} {state}"

    def look(n: int, state: dict[str, Any]) -> str:
        """Look."""
        return f"{n} {state}"

    class Given(BaseModel):
        n: int
        state: Annotated[dict[str, Any], InjectedState]

    hidden, shown = tool(peek), tool(look)
    described = StructuredTool.from_function(look, args_schema=Given)
    args: JsonObject = {"n": 1, "state": {"a": 1}}

    assert canonical_args(hidden, args) == {"n": 1}
    assert canonical_args(shown, args) == args
    assert canonical_args(described, args) == {"n": 1}


def test_a_class_of_its_own_decides_for_each_tool_what_is_injected() -> None:
    class Choosy(StructuredTool):
        hides: str = ""

        def _filter_injected_args(self, tool_input: dict[str, Any]) -> dict[str, Any]:
            return {key: one for key, one in tool_input.items() if key != self.hides}

    def peek(n: int = 0, m: int = 0) -> str:
        """Peek."""
        return f"{n} {m}"

    first, second = (Choosy.from_function(peek) for _ in range(2))
    first.hides, second.hides = "n", "m"

    assert caller_args(first, {"n": 1, "m": 2}) == {"m": 2}
    assert caller_args(second, {"n": 1, "m": 2}) == {"n": 1}


def test_a_schema_that_reads_one_text_in_two_ways_is_refused() -> None:
    numbers = itertools.count()

    class Numbered(BaseModel):
        text: str

        @field_validator("text")
        @classmethod
        def number(cls, text: str) -> str:
            return f"{text} {next(numbers)}"

    def say(text: str) -> str:
        """Return a greeting."""
        return text

    numbered = StructuredTool.from_function(say, args_schema=Numbered)

    with pytest.raises(ArgumentMismatch):
        canonical_args(numbered, {"text": "a"})
