"""A guarded tool runs under a matching grant, once, as LangChain runs it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Annotated, Any, cast

import pytest
from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, tool
from langgraph.prebuilt import InjectedState
from pydantic import BaseModel, Field

from keyturn.agent import grant, guarded
from keyturn.agent.canonical import ArgumentMismatch, canonical_args
from keyturn.agent.grants import Grant, grant_scope
from keyturn.agent.scripted_model import calling
from keyturn.gateway.errors import NotAllowed, NotStarted
from keyturn.gateway.gates.gate import is_guarded
from keyturn.gateway.protocol import wire
from keyturn.gateway.protocol.records import FailureKind
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.texts import failed_result
from tests.agent.agent_runner import Runner, build, results
from tests.agent.fake_gateway import FakeGateway


def _grant(args: dict[str, Any], name: str = "pay") -> Grant:
    return Grant("ap0.0", "key", "sha256:aa", name, wire.args_hash(args))


@guarded
@tool
def pay(amount: float, to: str = "ada") -> str:
    """Make a payment."""
    return f"{amount} to {to} under {grant().idempotency_key}"


async def _call(each: BaseTool, args: Any, *, is_async: bool) -> Any:
    return await each.ainvoke(args) if is_async else each.invoke(args)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_matching_grant_is_good_for_one_run(
    is_async: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    with grant_scope(_grant({"amount": 1})):
        first = await _call(pay, {"amount": 1}, is_async=is_async)
        with pytest.raises(NotAllowed, match="already ran"):
            await _call(pay, {"amount": 1}, is_async=is_async)

    assert first == "1.0 to ada under key"


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "args",
    [{"amount": 2}, {"amount": 1, "to": "eve"}, {"amount": "1"}, {}, "1"],
)
async def test_other_arguments_than_those_granted_do_not_run(
    is_async: bool,  # noqa: FBT001 - a parameter of the test
    args: Any,
) -> None:
    with (
        grant_scope(_grant({"amount": 1})),
        pytest.raises(NotAllowed, match="differs from the cleared one"),
    ):
        await _call(pay, args, is_async=is_async)


def test_a_grant_for_another_tool_and_no_grant_do_not_run() -> None:
    with grant_scope(_grant({"amount": 1}, "look_up")), pytest.raises(NotAllowed):
        pay.invoke({"amount": 1})
    with pytest.raises(NotAllowed, match="this call was not cleared"):
        pay.invoke({"amount": 1})
    with pytest.raises(NotAllowed, match="no grant"):
        grant()


async def test_a_grant_that_leaked_into_a_task_is_closed_with_its_execution() -> None:
    go = asyncio.Event()

    async def later() -> Any:
        await go.wait()
        return await pay.ainvoke({"amount": 1})

    with grant_scope(_grant({"amount": 1})):
        leaked = asyncio.create_task(later())
        await asyncio.sleep(0)
    go.set()

    with pytest.raises(NotAllowed):
        await leaked


def test_a_guarded_tool_keeps_what_the_model_and_langchain_see_of_it() -> None:
    @tool
    def plain(amount: float, to: str = "ada") -> str:
        """Make a payment."""
        return f"{amount} {to}"

    copy = guarded(plain)

    assert (copy.name, copy.description) == (plain.name, plain.description)
    assert copy.args == plain.args
    assert isinstance(copy, StructuredTool)
    assert (is_guarded(copy), is_guarded(plain)) == (True, False)
    assert guarded(copy) is copy
    assert plain.invoke({"amount": 1}) == "1.0 ada"


def test_arguments_that_the_runtime_injects_are_not_part_of_the_grant() -> None:
    @guarded
    @tool
    def peek(query: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Look into the state."""
        return f"{query} {state['x']}"

    with grant_scope(_grant({"query": "q"}, "peek")):
        assert peek.invoke({"query": "q", "state": {"x": 1}}) == "q 1"


def test_a_tool_that_its_own_guard_refused_did_nothing() -> None:
    with grant_scope(_grant({"amount": 1})), pytest.raises(NotStarted) as refused:
        pay.invoke({"amount": 2})

    failed = failed_result(refused.value)
    assert failed.failure is FailureKind.NOT_STARTED
    assert failed.summary.endswith("List `ApprovalMiddleware` last.")


def test_a_tool_in_which_another_one_was_refused_may_have_had_its_effect() -> None:
    with grant_scope(_grant({"amount": 1}, "look_up")), pytest.raises(NotAllowed) as e:
        pay.invoke({"amount": 1})

    failed = failed_result(e.value)
    assert failed.failure is FailureKind.REFUSED
    assert failed.has_started
    assert "'pay' differs from the cleared one" in failed.summary


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


async def with_both(order: str, config: RunnableConfig, callbacks: Any = None) -> Any:
    place = place_in(config)
    return order, place, isinstance(callbacks, BaseCallbackManager)


FUNCTIONS: dict[str, object] = {
    "plain": plain,
    "config": with_config,
    "both": with_both,
    "method": Shop().plain,
    "method with config": Shop().with_config,
    "partial": functools.partial(with_config),
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


ENTERED: list[str] = []


def described(function: Callable[..., Any], *names: str) -> BaseTool:
    """Return a tool whose JSON Schema has these arguments, as of an MCP server."""
    members = {name: {"type": "integer"} for name in names}
    return StructuredTool(
        name="act",
        description="Act.",
        args_schema={"type": "object", "properties": members},
        func=function,
    )


def inferred(function: Callable[..., Any]) -> BaseTool:
    return StructuredTool.from_function(function, name="act", description="Act.")


def enter(**given: object) -> str:
    ENTERED.append("entered")
    return f"{sorted(given)}"


def anything(**given: object) -> str:
    return enter(**given)


def one(a: int) -> str:
    return enter(a=a)


def positional(a: int, /) -> str:
    return enter(a=a)


def two(a: int, b: int) -> str:
    return enter(a=a, b=b)


def needing_config(a: int, config: RunnableConfig) -> str:
    return enter(a=a, config=config)


def with_injected(a: int, key: Annotated[str, InjectedToolArg] = "") -> str:
    return enter(a=a, key=key)


@functools.wraps(two)
def wrapped_narrowly(a: int) -> str:
    return enter(a=a)


@functools.wraps(one)
def wrapped(*args: Any, **given: Any) -> str:
    return one(*args, **given)


class Unhashable:
    """A callable without a hash."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, a: int) -> str:
        return enter(a=a)


class Aliased(BaseModel):
    a: int = Field(alias="anA")


class Plain(BaseTool):
    name: str = "act"
    description: str = "Act."

    def _run(self, a: int, run_manager: object = None) -> str:
        return enter(a=a, run_manager=run_manager)


TOOLS: dict[str, tuple[BaseTool, JsonObject]] = {
    "self": (described(anything, "self"), {"self": 1}),
    "self of a class": (Plain(), {"a": 1, "self": 1}),
    "args": (described(anything, "args"), {"args": 1}),
    "one": (described(one, "a"), {"a": 1}),
    "unknown to the function": (described(one, "a", "b"), {"a": 1, "b": 2}),
    "missing": (described(two, "a"), {"a": 1}),
    "positional": (inferred(positional), {"a": 1}),
    "config": (inferred(needing_config), {"a": 1}),
    "injected": (inferred(with_injected), {"a": 1}),
    "wrapped": (inferred(wrapped), {"a": 1}),
    "wrapped narrowly": (described(wrapped_narrowly, "a", "b"), {"a": 1, "b": 2}),
    "aliased": (
        StructuredTool(name="act", description="", args_schema=Aliased, func=one),
        {"anA": 1},
    ),
    "a class without a schema": (Plain(), {"a": 1}),
    "a class that misses one": (Plain(), {"b": 1}),
    "without a hash": (described(Unhashable(), "a"), {"a": 1}),
    "partial": (described(functools.partial(two, b=2), "a"), {"a": 1}),
}


def takes(tool: BaseTool, args: JsonObject) -> bool:
    try:
        canonical_args(tool, args)
    except ArgumentMismatch:
        return False
    return True


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("is_guarded", [False, True])
def test_arguments_are_accepted_if_they_fit(name: str, *, is_guarded: bool) -> None:
    tool, args = TOOLS[name]
    ENTERED.clear()
    try:
        tool.run(dict(args))
    except TypeError:
        assert ENTERED == []

    assert takes(guarded(tool) if is_guarded else tool, args) == bool(ENTERED)


async def test_a_call_python_cannot_bind_asks_nobody(runner: Runner) -> None:
    gateway = FakeGateway()
    tool = guarded(described(positional, "a"))
    graph = build(gateway, [tool], calling(("act", {"a": 1}, "c1")))

    state = await runner.say(graph, "go")

    assert gateway.items == {}
    [message] = results(state)
    assert "no approval was requested" in message.text
    assert "positional" in message.text
