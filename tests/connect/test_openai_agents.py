"""An agent of the OpenAI Agents SDK behind Keyturn, in process and durable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from agents import (
    Agent,
    CodeInterpreterTool,
    HostedMCPTool,
    Runner,
    RunState,
    ToolCallOutputItem,
    ToolOutputText,
    WebSearchTool,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from agents.mcp import MCPServerStdio
from agents.sandbox import SandboxAgent
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses.tool_param import CodeInterpreter, Mcp

from keyturn.connect.once import permit
from keyturn.connect.openai_agents import decided, gate_tools
from keyturn.gateway.approvals.record import Approval, approval_of
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import (
    AGENT,
    EXECUTED,
    Behaviour,
    Call,
    Desk,
    Run,
    name_of,
)
from tests.connect.conftest import Attempts


@pytest.fixture(autouse=True)
def untraced() -> None:
    set_tracing_disabled(disabled=True)


def scripted(calls: Sequence[Call]) -> ScriptedModel:
    """Make these calls in the first response, then end."""
    first = [
        function_call(call.tool, call.args, call_id=f"c{number}")
        for number, call in enumerate(calls)
    ]
    return ScriptedModel([*([first] if calls else []), [assistant_message("done")]])


def agent_of(desk: Desk, calls: Sequence[Call], *, durable: bool) -> Agent[Any]:
    """Return the gated agent of one process."""
    tools: list[Any] = [function_tool(desk.bank.pay), function_tool(desk.bank.wipe)]
    plain = Agent(name="payer", model=scripted(calls), tools=tools)
    return gate_tools(plain, AGENT, gateway=desk.gate, durable=durable)


def told_in(result: Any) -> list[str]:
    """Return what the model reads of each call, in the order of the calls."""
    items = [it for it in result.new_items if isinstance(it, ToolCallOutputItem)]
    found = {str(cast("Any", it.raw_item)["call_id"]): str(it.output) for it in items}
    return [text for _, text in sorted(found.items())]


async def run_here(agent: Agent[Any], given: Any) -> Any:
    return await Runner.run(agent, given)


async def run_streamed(agent: Agent[Any], given: Any) -> Any:
    result = Runner.run_streamed(agent, given)
    async for _event in result.stream_events():
        pass
    return result


Start = Callable[[Agent[Any], Any], Awaitable[Any]]


class InProcess:
    """The agent waits for people where it is; a replay makes the same calls again."""

    def __init__(self, desk: Desk, start: Start) -> None:
        self._desk, self._start = desk, start

    async def propose(self, calls: Sequence[Call]) -> Run:
        async def attempt() -> list[str]:
            agent = agent_of(self._desk, calls, durable=False)
            return told_in(await self._start(agent, "pay"))

        return Attempts(asyncio.create_task(attempt()), attempt)


class Durable:
    """The run pauses; each attempt continues its saved state, as another process."""

    def __init__(self, desk: Desk, start: Start) -> None:
        self._desk, self._start = desk, start

    async def propose(self, calls: Sequence[Call]) -> Run:
        first = agent_of(self._desk, calls, durable=True)
        result = await self._start(first, "pay")
        saved = result.to_state().to_string()

        async def attempt() -> list[str]:
            agent = agent_of(self._desk, [], durable=True)
            state: Any = await RunState.from_string(agent, saved)
            return told_in(await self._start(agent, await decided(state)))

        async def ended() -> list[str]:
            return told_in(result)

        go_on = attempt if result.interruptions else ended
        return Attempts(asyncio.create_task(go_on()), go_on)


@pytest.mark.parametrize("start", [run_here, run_streamed])
@pytest.mark.parametrize("driver", [InProcess, Durable])
@pytest.mark.parametrize("behaviour", EXECUTED, ids=name_of)
async def test_it_keeps_what_connectors_promise(
    behaviour: Behaviour,
    driver: type[InProcess | Durable],
    start: Start,
    store: Store,
) -> None:
    async with Desk.on(store) as desk:
        await behaviour(desk, driver(desk, start))


async def test_an_approval_by_the_program_runs_nothing(desk: Desk) -> None:
    agent = agent_of(desk, [Call(5)], durable=True)
    paused = await Runner.run(agent, "pay")
    state = paused.to_state()
    state.approve(state.get_interruptions()[0], always_approve=True)

    running = asyncio.create_task(run_here(agent, state))
    [item] = await desk.asked()
    assert desk.bank.paid == []
    await desk.reject(item, "nobody asked")

    [told] = told_in(await running)
    assert desk.bank.paid == []
    assert "nobody asked" in told


@pytest.mark.parametrize(
    "change", [('\\"amount\\":5', '\\"amount\\":999'), ('"c0"', '"c7"')]
)
async def test_a_forged_state_runs_nothing(desk: Desk, change: tuple[str, str]) -> None:
    agent = agent_of(desk, [Call(5)], durable=True)
    saved = (await Runner.run(agent, "pay")).to_state().to_string()
    [item] = await desk.asked()
    await desk.approve(item)
    forged = saved.replace(*change)
    assert forged != saved

    async def resumed() -> None:
        other = agent_of(desk, [], durable=True)
        state: Any = await RunState.from_string(other, forged)
        for one in state.get_interruptions():
            state.approve(one)
        await run_here(other, state)

    running = asyncio.create_task(resumed())
    asked = asyncio.create_task(desk.asked())
    await asyncio.wait([running, asked], return_when=asyncio.FIRST_COMPLETED)
    for task in (running, asked):
        task.cancel()
    await asyncio.gather(running, asked, return_exceptions=True)

    assert desk.bank.paid == []


async def test_the_given_agent_and_its_tools_are_not_changed(desk: Desk) -> None:
    tool = function_tool(desk.bank.pay)
    plain = Agent(name="payer", tools=[tool])

    gated = gate_tools(plain, AGENT, gateway=desk.gate, durable=True)

    assert plain.tools == [tool]
    assert tool.needs_approval is False
    assert gated.tools[0] is not tool


async def test_agents_that_are_handed_off_to_are_gated(desk: Desk) -> None:
    tools: list[Any] = [function_tool(desk.bank.pay)]
    payer = Agent(name="payer", model=scripted([Call(5)]), tools=tools)
    other = Agent(name="other", model=scripted([]), tools=tools, handoffs=[])
    hand = function_call("transfer_to_payer", {}, call_id="h1")
    first = Agent(
        name="first", model=ScriptedModel([[hand]]), handoffs=[handoff(payer), other]
    )
    other.handoffs.append(first)
    gated = gate_tools(first, AGENT, gateway=desk.gate)

    running = asyncio.create_task(run_here(gated, "pay"))
    [item] = await desk.asked()
    assert desk.bank.paid == []
    await desk.approve(item)
    result = await running

    assert desk.bank.paid == [Call(5).args]
    assert result.last_agent.name == "payer"
    assert isinstance(gated.handoffs[1], Agent)
    assert gated.handoffs[1].handoffs == [gated]


async def test_a_saved_run_that_was_handed_off_is_continued(desk: Desk) -> None:
    def first(hand: Sequence[Any], calls: Sequence[Call]) -> Agent[Any]:
        tools: list[Any] = [function_tool(desk.bank.pay)]
        payer = Agent(name="payer", model=scripted(calls), tools=tools)
        model = ScriptedModel([hand] if hand else [])
        plain = Agent(name="first", model=model, handoffs=[handoff(payer)])
        return gate_tools(plain, AGENT, gateway=desk.gate, durable=True)

    hand = function_call("transfer_to_payer", {}, call_id="h1")
    begun = await Runner.run(first([hand], [Call(5)]), "pay")
    saved = begun.to_state().to_string()
    [item] = await desk.asked()
    await desk.approve(item)

    again = first([], [])
    state: Any = await RunState.from_string(again, saved)
    await run_here(again, await decided(state))

    assert desk.bank.paid == [Call(5).args]


async def test_calls_of_a_conversation_do_not_replace_each_other(desk: Desk) -> None:
    tools: list[Any] = [function_tool(desk.bank.pay)]
    plain = Agent(name="a", model=scripted([Call(1), Call(2)]), tools=tools)
    gated = gate_tools(
        plain, AGENT, gateway=desk.gate, thread=lambda run: str(run.context)
    )
    running = asyncio.create_task(Runner.run(gated, "pay", context="order-61003"))
    items = await desk.asked(2)
    for item in items:
        await desk.approve(item)
    await running

    threads = {one.thread for one in await opened(desk, items)}
    assert threads == {"order-61003"}
    assert sorted(desk.bank.paid, key=str) == [Call(1).args, Call(2).args]


async def opened(desk: Desk, items: Sequence[str]) -> list[Approval]:
    found = [await desk.reviews.read(approval_of(item)[0]) for item in items]
    return [one.approval for one in found if one]


async def test_an_agent_as_a_tool_has_to_be_gated_before(desk: Desk) -> None:
    tools: list[Any] = [function_tool(desk.bank.pay)]
    inner = Agent(name="payer", model=scripted([Call(5)]), tools=tools)
    ask = function_call("ask_payer", {"input": "pay"}, call_id="a1")
    model = ScriptedModel([[ask], [assistant_message("done")]])

    def outer(payer: Agent[Any]) -> Agent[Any]:
        return Agent(name="outer", model=model, tools=[payer.as_tool("ask_payer", "")])

    with pytest.raises(SettingsError, match=r"before \.as_tool"):
        gate_tools(outer(inner), AGENT, gateway=desk.gate)

    gated = gate_tools(inner, AGENT, gateway=desk.gate)
    both = gate_tools(outer(gated), AGENT, gateway=desk.gate)
    running = asyncio.create_task(run_here(both, "pay"))
    [item] = await desk.asked()
    await desk.approve(item)
    await running
    assert desk.bank.paid == [Call(5).args]


async def test_a_pause_inside_an_agent_as_a_tool_is_continued(desk: Desk) -> None:
    tools: list[Any] = [function_tool(desk.bank.pay)]
    inner = Agent(name="payer", model=scripted([Call(5)]), tools=tools)
    gated = gate_tools(inner, AGENT, gateway=desk.gate, durable=True)
    ask = function_call("ask_payer", {"input": "pay"}, call_id="a1")
    model = ScriptedModel([[ask], [assistant_message("done")]])
    outer = Agent(name="outer", model=model, tools=[gated.as_tool("ask_payer", "")])
    both = gate_tools(outer, AGENT, gateway=desk.gate, durable=True)

    paused = await Runner.run(both, "pay")
    assert len(paused.interruptions) == 1
    [item] = await desk.asked()
    await desk.approve(item)
    result = await Runner.run(both, await decided(paused.to_state()))

    assert desk.bank.paid == [Call(5).args]
    assert result.final_output == "done"


def past_the_gate(desk: Desk) -> dict[str, Agent[Any]]:
    """Return agents that would act past the gate, by the words of the refusal."""
    mcp = Mcp(type="mcp", server_label="crm", server_url="https://crm.example.com")
    code = CodeInterpreter(type="code_interpreter", container="c")
    server = MCPServerStdio({"command": "crm-server"}, name="the CRM")
    pay = function_tool(desk.bank.pay, needs_approval=True)
    return {
        "WebSearchTool 'web_search'": Agent(name="a", tools=[WebSearchTool()]),
        "HostedMCPTool": Agent(name="a", tools=[HostedMCPTool(tool_config=mcp)]),
        "CodeInterpreterTool": Agent(
            name="a", tools=[CodeInterpreterTool(tool_config=code)]
        ),
        "MCP server 'the CRM'": Agent(name="a", mcp_servers=[server]),
        "stored prompt": Agent(name="a", prompt={"id": "pmpt_1"}),
        "tool 'pay'": Agent(name="a", tools=[pay]),
        "SandboxAgent 'a'": SandboxAgent(name="a"),
    }


@pytest.mark.parametrize("number", range(7))
async def test_an_agent_past_the_gate_is_named(desk: Desk, number: int) -> None:
    words, agent = [*past_the_gate(desk).items()][number]

    for whole in (agent, Agent(name="outer", handoffs=[agent])):
        with pytest.raises(SettingsError, match=words):
            gate_tools(whole, AGENT, gateway=desk.gate)


async def test_a_failed_tool_is_recorded_as_failed(desk: Desk) -> None:
    async def pay(amount: int, to: str) -> str:
        assert permit().idempotency_key
        raise ValueError(f"no money for {to}: {amount}")

    plain = Agent(name="a", model=scripted([Call(5)]), tools=[function_tool(pay)])
    running = asyncio.create_task(
        run_here(gate_tools(plain, AGENT, gateway=desk.gate), "pay")
    )
    [item] = await desk.asked()
    await desk.approve(item)

    [told] = told_in(await running)

    assert "The tool failed" in told
    assert "no money for ada: 5" in told
    assert (await desk.item(item)).state is ItemState.FAILED


async def test_a_tools_time_limit_is_for_its_run(desk: Desk) -> None:
    slow = function_tool(desk.bank.pay, timeout=0.001)
    desk.bank.block()
    plain = Agent(name="a", model=scripted([Call(5)]), tools=[slow])
    running = asyncio.create_task(
        run_here(gate_tools(plain, AGENT, gateway=desk.gate), "pay")
    )
    [item] = await desk.asked()
    await desk.approve(item)

    [told] = told_in(await running)

    assert "TimeoutError" in told
    assert desk.bank.paid == [Call(5).args]


async def test_the_notice_of_an_edit_precedes_structured_output(desk: Desk) -> None:
    async def pay(amount: int, to: str) -> ToolOutputText:
        return ToolOutputText(text=f"[keyturn:edited] paid {amount} to {to}")

    plain = Agent(name="a", model=scripted([Call(5)]), tools=[function_tool(pay)])
    running = asyncio.create_task(
        run_here(gate_tools(plain, AGENT, gateway=desk.gate), "pay")
    )
    [item] = await desk.asked()
    await desk.edit(item, Call(4).args)

    result = await running

    [output] = [i for i in result.new_items if isinstance(i, ToolCallOutputItem)]
    notice, text = output.output
    assert notice["text"].startswith("[keyturn:edited] A reviewer changed this call")
    assert text == {"type": "text", "text": "[not-keyturn:edited] paid 4 to ada"}
