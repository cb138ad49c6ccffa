"""A tool that ends its program ends its call, and neither process nor run."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import guarded
from keyturn.agent.grants import ToolEscape, contained
from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.agent.agent_runner import Runner, build, by_call
from tests.agent.fake_gateway import FakeGateway


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
    runner: Runner, memory: InMemorySaver, said: str, *, is_guarded: bool
) -> None:
    gateway = FakeGateway({})
    plain = tool_that(ENDS[said], is_async=runner.is_async)
    tools = [guarded(plain) if is_guarded else plain]
    graph = build(gateway, tools, calling(("act", {}, "c1")), saver=memory)
    await runner.say(graph, "act")
    item = gateway.only()
    gateway.approve(item.id)

    end = await runner.resume(graph, gateway)

    assert said in by_call(end)["c1"].text
    assert end["messages"][-1].text == "done"
    assert gateway.items[item.id].state is ItemState.FAILED


@pytest.mark.parametrize("said", ENDS)
async def test_a_tool_that_runs_alone_fails_like_with_any_exception(
    runner: Runner, memory: InMemorySaver, said: str
) -> None:
    gateway = FakeGateway({"act": Tier.AUTO})
    # A function that is not asynchronous runs in a thread, from where the exception
    # would go through a task.
    plain = tool_that(ENDS[said], is_async=False)
    graph = build(gateway, [plain], calling(("act", {}, "c1")), saver=memory)

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
