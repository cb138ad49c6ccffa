"""Tools and middleware of LangChain's users work behind the gate as before."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.tools import BaseTool, tool

from keyturn.agent import guarded
from keyturn.agent.grants import ToolEscape, contained
from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.agent.agent_runner import Runner, build, by_call, pay, results
from tests.agent.fake_gateway import FakeGateway


@pytest.mark.parametrize(("tier", "times"), [(Tier.AUTO, 3), (Tier.APPROVE, 1)])
async def test_retrying_middleware_repeats_no_call_that_people_approved(
    runner: Runner, tier: Tier, times: int
) -> None:
    def fail() -> None:
        if len(runner.paid) < 3:
            raise ConnectionError("try again")

    runner.inside = fail
    gateway = FakeGateway({"pay": tier})
    retrying = ToolRetryMiddleware(max_retries=5, initial_delay=0, jitter=False)
    graph = build(gateway, runner.tools(), pay(), before=[retrying])
    end = await runner.say(graph, "pay")
    if gateway.items:
        gateway.approve(gateway.only().id)
        end = await runner.resume(graph, gateway)

    assert len(runner.paid) == times
    assert by_call(end)["c1"].status == ("success" if times > 1 else "error")


@pytest.mark.parametrize("on_failure", ["continue", "error"])
async def test_retries_past_the_gate_do_none(runner: Runner, on_failure: Any) -> None:
    def fail() -> None:
        raise ConnectionError("try again")

    runner.inside = fail
    gateway = FakeGateway({"pay": Tier.AUTO})
    retrying = ToolRetryMiddleware(initial_delay=0, jitter=False, on_failure=on_failure)
    graph = build(gateway, runner.tools(), pay(), after=[retrying])

    end = await runner.say(graph, "pay")

    assert len(runner.paid) == 1
    assert by_call(end)["c1"].status == "error"


@tool
def added(x: int) -> str:
    """Act."""
    return f"did {x}"


class Adds(AgentMiddleware[Any, Any, Any]):
    """Adds a tool to each request, and runs its calls."""

    def wrap_model_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        return handler(request.override(tools=[*request.tools, added]))

    def wrap_tool_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        return handler(request.override(tool=added))

    async def awrap_model_call(
        self, request: Any, handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        return await handler(request.override(tools=[*request.tools, added]))

    async def awrap_tool_call(
        self, request: Any, handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        return await handler(request.override(tool=added))


@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_middlewares_tool_needs_its_order(runner: Runner, place: str) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    call = calling(("added", {"x": 1}, "c1"))
    known = tool("known")(added.func)  # type: ignore[attr-defined]  # a tool made of a function has it
    others: dict[str, Any] = {place: [Adds()]}

    state = await runner.say(build(gateway, [known], call, **others), "go")

    [message] = results(state)
    if place == "before":
        assert message.text == "did 1"
    else:
        assert message.text.startswith("There is no tool 'added'")
        assert (
            "list a middleware that adds tools before ApprovalMiddleware"
            in message.text
        )


def _exit() -> None:
    sys.exit("usage: act FILE")


def _cancel() -> None:
    raise asyncio.CancelledError


ENDS: dict[str, Callable[[], None]] = {
    "SystemExit: usage: act FILE": _exit,
    "CancelledError": _cancel,
}


def tool_that(end: Callable[[], None], *, is_async: bool) -> BaseTool:
    """Return a tool that ends in this way."""
    if is_async:

        @tool
        async def act() -> str:
            """Act."""
            await asyncio.sleep(0)
            end()
            return "acted"

        return act

    @tool("act")
    def act_at_once() -> str:
        """Act."""
        end()
        return "acted"

    return act_at_once


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("said", ENDS)
async def test_an_approved_tool_that_ends_its_program_has_failed(
    runner: Runner, said: str, *, is_guarded: bool
) -> None:
    gateway = FakeGateway({})
    plain = tool_that(ENDS[said], is_async=runner.is_async)
    tools = [guarded(plain) if is_guarded else plain]
    graph = build(gateway, tools, calling(("act", {}, "c1")))
    await runner.say(graph, "act")
    item = gateway.only()
    gateway.approve(item.id)

    end = await runner.resume(graph, gateway)

    assert said in by_call(end)["c1"].text
    assert end["messages"][-1].text == "done"
    assert gateway.items[item.id].state is ItemState.FAILED


@pytest.mark.parametrize("said", ENDS)
async def test_a_tool_alone_fails_by_any_exception(runner: Runner, said: str) -> None:
    gateway = FakeGateway({"act": Tier.AUTO})
    # A function that is not asynchronous runs in a thread, from where the exception
    # would go through a task.
    plain = tool_that(ENDS[said], is_async=False)
    graph = build(gateway, [plain], calling(("act", {}, "c1")))

    with pytest.raises(ToolEscape, match=said):
        await runner.say(graph, "act")


def test_a_process_that_a_signal_ends_while_a_tool_runs_does_end() -> None:
    def end(_number: int, _frame: object) -> None:
        sys.exit("told to end")

    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(SystemExit, match="told to end"), contained():
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
