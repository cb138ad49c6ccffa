"""A guarded tool passes on to its function what LangChain passes on."""

from __future__ import annotations

import functools
from typing import Any, cast

import pytest
from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel

from keyturn.agent import guarded
from keyturn.agent.grants import Grant, grant_scope
from keyturn.gateway.protocol import wire

CONFIG: RunnableConfig = {"tags": ["one"], "configurable": {"place": "here"}}
ARGS = {"order": "7"}


def place_in(config: RunnableConfig) -> object:
    return config.get("configurable", {})["place"]


class Args(BaseModel):
    """What each of the functions is asked with."""

    order: str


class Shop:
    """Has a method that is a tool."""

    async def plain(self, order: str) -> object:
        return order, None, None

    async def with_config(self, order: str, given: RunnableConfig) -> object:
        return order, place_in(given), None


async def plain(order: str) -> object:
    return order, None, None


async def with_config(order: str, given: RunnableConfig) -> object:
    return order, place_in(given), None


async def with_callbacks(order: str, callbacks: Any = None) -> object:
    return order, None, isinstance(callbacks, BaseCallbackManager)


async def with_both(order: str, config: RunnableConfig, callbacks: Any = None) -> Any:
    place = place_in(config)
    return order, place, isinstance(callbacks, BaseCallbackManager)


async def with_unknown_names(order: str, other: Any = None) -> object:
    return order, other, None


with_unknown_names.__annotations__["other"] = "Nowhere"


class Called:
    """An object that is called like a function."""

    async def __call__(self, order: str) -> object:
        return order, None, None


FUNCTIONS: dict[str, object] = {
    "plain": plain,
    "config": with_config,
    "callbacks": with_callbacks,
    "both": with_both,
    "unknown names": with_unknown_names,
    "method": Shop().plain,
    "method with config": Shop().with_config,
    "partial": functools.partial(with_config),
    "object": Called(),
}


def tool_of(function: object) -> BaseTool:
    run = cast("Any", function)
    return StructuredTool(
        name="look", description="Look.", args_schema=Args, coroutine=run
    )


async def ran(tool: BaseTool) -> object:
    given = Grant("i", "k", "h", "look", wire.args_hash(dict(ARGS)))
    with grant_scope(given):
        return await tool.ainvoke(dict(ARGS), CONFIG)


@pytest.mark.parametrize("name", FUNCTIONS)
async def test_a_guarded_tool_runs_as_langchain_runs_it(name: str) -> None:
    tool = tool_of(FUNCTIONS[name])
    expected = await ran(tool)

    first, again = await ran(guarded(tool)), await ran(guarded(tool))

    assert first == again == expected
    assert str(expected).startswith("('7'")


async def test_a_tool_without_a_coroutine_runs_its_function() -> None:
    def look(order: str, config: RunnableConfig) -> str:
        return f"{order} {place_in(config)}"

    tool = StructuredTool(name="look", description="L", args_schema=Args, func=look)

    assert await ran(guarded(tool)) == await ran(tool) == "7 here"


async def test_a_class_that_runs_in_its_own_way_does_so() -> None:
    class Own(StructuredTool):
        async def _arun(self, *args: Any, **kwargs: Any) -> Any:
            return "its own way"

    tool = Own(name="look", description="L", args_schema=Args, coroutine=plain)

    assert await ran(guarded(tool)) == "its own way"
