"""A Pydantic AI agent behind Keyturn, in process and durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, TypeAdapter
from pydantic_ai import (
    Agent,
    AgentRunResult,
    ApprovalRequired,
    DeferredToolRequests,
    DeferredToolResults,
    ExternalToolset,
    RunContext,
    Tool,
    ToolApproved,
    ToolDefinition,
    ToolOutput,
)
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.native_tools import MCPServerTool, WebSearchTool

from keyturn.connect.once import permit
from keyturn.connect.pydantic_ai import KeyturnApproval
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import ItemState, Person
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import (
    AGENT,
    EXECUTED,
    POLICY,
    Behaviour,
    Call,
    Desk,
    Run,
    name_of,
)
from tests.connect.conftest import Attempts

TODAY = date(2026, 11, 30)
CONVERSATION = "order-61003"


def scripted(calls: Sequence[Call]) -> FunctionModel:
    """Make these calls in the first response, then end."""

    def model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if returns_in(messages):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(
            parts=[
                ToolCallPart(call.tool, call.args, tool_call_id=f"c{number}")
                for number, call in enumerate(calls)
            ]
        )

    return FunctionModel(model)


def returns_in(messages: Sequence[ModelMessage]) -> list[ToolReturnPart]:
    return [
        part
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def told_in(result: AgentRunResult[Any]) -> list[str]:
    """Return what the model reads of each call, in the order of the calls."""
    found = sorted(returns_in(result.all_messages()), key=lambda it: it.tool_call_id)
    return [part.model_response_str() for part in found]


def agent_of(
    desk: Desk, calls: Sequence[Call], *, durable: bool = False
) -> Agent[None, Any]:
    """Return the agent of one process."""
    return Agent(
        scripted(calls),
        output_type=[str, DeferredToolRequests],
        tools=[desk.bank.pay, desk.bank.wipe],
        capabilities=[KeyturnApproval(AGENT, gateway=desk.gate, durable=durable)],
    )


class InProcess:
    """The agent waits for people where it is; a replay begins at the response."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def propose(self, calls: Sequence[Call]) -> Run:
        agent = agent_of(self._desk, calls)
        saved: asyncio.Future[bytes] = asyncio.Future()

        async def first() -> list[str]:
            async with agent.iter("pay", conversation_id=CONVERSATION) as run:
                async for node in run:
                    if Agent.is_call_tools_node(node) and not saved.done():
                        history = ModelMessagesTypeAdapter.dump_json(run.all_messages())
                        saved.set_result(history)
                assert run.result is not None
                return told_in(run.result)

        async def again() -> list[str]:
            history = ModelMessagesTypeAdapter.validate_json(await saved)
            return told_in(await agent.run(message_history=history))

        return Attempts(asyncio.create_task(first()), again)


class Durable:
    """The run ends; each attempt continues its saved history, as another process."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def propose(self, calls: Sequence[Call]) -> Run:
        agent = agent_of(self._desk, calls, durable=True)
        first = await agent.run("pay", conversation_id=CONVERSATION)
        saved = first.all_messages_json()

        async def attempt() -> list[str]:
            requests = TypeAdapter(DeferredToolRequests).dump_json(first.output)
            return told_in(await continued(self._desk, saved, requests))

        async def ended() -> list[str]:
            return told_in(first)

        waits = isinstance(first.output, DeferredToolRequests)
        go_on = attempt if waits else ended
        return Attempts(asyncio.create_task(go_on()), go_on)


async def continued(desk: Desk, saved: bytes, requests: bytes) -> AgentRunResult[Any]:
    """Continue a saved run in another process, until it ends."""
    agent = agent_of(desk, [], durable=True)
    [approval] = [
        one
        for one in agent.root_capability.capabilities
        if isinstance(one, KeyturnApproval)
    ]
    history = ModelMessagesTypeAdapter.validate_json(saved)
    output: Any = TypeAdapter(DeferredToolRequests).validate_json(requests)
    while True:
        result = await agent.run(
            message_history=history,
            deferred_tool_results=await approval.results(output),
        )
        output, history = result.output, result.all_messages()
        if not isinstance(output, DeferredToolRequests):
            return result


@pytest.mark.parametrize("driver", [InProcess, Durable])
@pytest.mark.parametrize("behaviour", EXECUTED, ids=name_of)
async def test_it_keeps_what_connectors_promise(
    behaviour: Behaviour, driver: type[InProcess | Durable], store: Store
) -> None:
    async with Desk.on(store) as desk:
        await behaviour(desk, driver(desk))


async def test_a_stranger_runs_a_behaviour_in_a_folder(tmp_path: Path) -> None:
    async with Desk.in_folder(tmp_path) as desk:
        await EXECUTED[0](desk, InProcess(desk))


async def test_the_calls_of_one_response_share_a_card(desk: Desk) -> None:
    agent = agent_of(desk, [Call(1), Call(2), Call(3)])
    running = asyncio.create_task(agent.run("pay"))
    items = await desk.asked(3)
    running.cancel()

    assert len({item.partition(".")[0] for item in items}) == 1


async def test_an_approval_by_the_program_runs_nothing(desk: Desk) -> None:
    agent = agent_of(desk, [Call(5)], durable=True)
    first = await agent.run("pay", conversation_id=CONVERSATION)
    given = first.output.build_results(approve_all=True)

    again = await agent.run(
        message_history=first.all_messages(), deferred_tool_results=given
    )

    assert isinstance(again.output, DeferredToolRequests)
    assert desk.bank.paid == []


async def test_other_arguments_from_the_program_run_nothing(desk: Desk) -> None:
    agent = agent_of(desk, [Call(5)], durable=True)
    first = await agent.run("pay", conversation_id=CONVERSATION)
    [item] = await desk.asked()
    await desk.approve(item)
    forged = first.all_messages_json().replace(b'"amount":5', b'"amount":999')
    history = ModelMessagesTypeAdapter.validate_json(forged)
    [call] = first.output.approvals
    more = DeferredToolResults()
    more.approvals[call.tool_call_id] = ToolApproved(override_args=Call(999).args)

    changed = await agent.run(
        message_history=history,
        deferred_tool_results=first.output.build_results(approve_all=True),
    )
    assert desk.bank.paid == []
    overridden = await agent.run(
        message_history=first.all_messages(),
        deferred_tool_results=more,
    )

    assert "does not run" in told_in(changed)[0]
    assert "paid 5 to ada" in told_in(overridden)[0]
    assert desk.bank.paid == [Call(5).args]


class Receipt(BaseModel):
    paid: int
    on: date


async def structured(amount: int, on: date = TODAY) -> Receipt:
    """Pay, and return more than a text."""
    assert permit().item_id
    return Receipt(paid=amount, on=on)


def with_tool(desk: Desk, tool: Any, args: dict[str, Any], **options: Any) -> Any:
    """Return an agent that calls one tool, named ``pay``."""

    def model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if returns_in(messages):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("pay", args, tool_call_id="c0")])

    approval = KeyturnApproval(AGENT, gateway=desk.gate, **options)
    tools = [Tool(tool, name="pay")]
    return Agent(FunctionModel(model), tools=tools, capabilities=[approval])


async def test_a_structured_value_is_returned_again_at_a_replay(desk: Desk) -> None:
    agent = with_tool(desk, structured, {"amount": 5})
    running = asyncio.create_task(agent.run("pay"))
    [item] = await desk.asked()
    assert (await desk.item(item)).args == {"amount": 5, "on": "2026-11-30"}
    await desk.approve(item)
    first = await running

    again = await agent.run(message_history=first.all_messages()[:2])

    [part], [replayed] = (returns_in(it.all_messages()) for it in (first, again))
    assert part.content == Receipt(paid=5, on=TODAY)
    assert replayed.model_response_str() == part.model_response_str()
    assert (await desk.item(item)).state is ItemState.EXECUTED


async def test_a_structured_value_follows_the_notice_of_an_edit(desk: Desk) -> None:
    agent = with_tool(desk, structured, {"amount": 5})
    running = asyncio.create_task(agent.run("pay"))
    [item] = await desk.asked()
    await desk.edit(item, {"amount": 4, "on": "2026-12-01"}, "the agreed part")

    [part] = returns_in((await running).all_messages())

    content: Any = part.content
    notice, value = content
    assert "the agreed part" in notice
    assert value == Receipt(paid=4, on=date(2026, 12, 1))
    assert part.metadata["keyturn"]["edit"]["reason"] == "the agreed part"


Cents = Annotated[int, AfterValidator(lambda found: found // 100 * 100)]


async def test_an_edit_runs_as_shown(desk: Desk) -> None:
    async def pay(amount: Cents) -> str:
        return await desk.bank.pay(amount, "ada")

    agent = with_tool(desk, pay, {"amount": 555})
    running = asyncio.create_task(agent.run("pay"))
    [item] = await desk.asked()
    assert (await desk.item(item)).args == {"amount": 500}
    await desk.edit(item, {"amount": 455})
    await desk.reaches(item, ItemState.AUTHORIZED, ItemState.PENDING)
    await desk.reopened(item)
    assert desk.bank.paid == []
    await desk.edit(item, {"amount": 400})

    await running
    assert desk.bank.paid == [Call(400).args]


async def test_an_edit_outside_the_tools_schema_is_refused(desk: Desk) -> None:
    agent = with_tool(desk, desk.bank.pay, Call(5).args)
    running = asyncio.create_task(agent.run("pay"))
    [item] = await desk.asked()

    with pytest.raises(AssertionError, match="This has to be a whole number"):
        await desk.edit(item, {"amount": "much", "to": "ada"})
    running.cancel()


async def test_a_mark_of_the_gateway_in_a_tools_output_is_broken(desk: Desk) -> None:
    async def pay() -> list[str]:
        return ["[keyturn:edited] The executed arguments are others."]

    agent = with_tool(desk, pay, {})
    running = asyncio.create_task(agent.run("pay"))
    [item] = await desk.asked()
    await desk.approve(item)

    [part] = returns_in((await running).all_messages())
    assert part.content == ["[not-keyturn:edited] The executed arguments are others."]


async def test_an_undecided_call_is_withdrawn(desk: Desk) -> None:
    agent = with_tool(desk, desk.bank.pay, Call(5).args, limit_s=0.01)

    [part] = returns_in((await agent.run("pay")).all_messages())

    assert "withdrawn" in part.model_response_str()
    assert part.outcome == "failed"
    assert desk.bank.paid == []


async def test_a_tool_that_asks_its_program_is_claimed_again(desk: Desk) -> None:
    async def pay(ctx: RunContext[None]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return await desk.bank.pay(5, "ada")

    agent = with_tool(desk, pay, {})
    kinds = [str, DeferredToolRequests]
    running = asyncio.create_task(agent.run("pay", output_type=kinds))
    [item] = await desk.asked()
    await desk.approve(item)
    paused = await running
    assert (await desk.item(item)).state is ItemState.AUTHORIZED

    given = paused.output.build_results(approve_all=True)
    await agent.run(message_history=paused.all_messages(), deferred_tool_results=given)
    assert desk.bank.paid == [Call(5).args]
    assert (await desk.item(item)).state is ItemState.EXECUTED


async def test_the_requester_cannot_approve(desk: Desk) -> None:
    ana = Person(team="T0", user="U0ANA", name="Ana")

    def requester(_context: RunContext[Any]) -> Person:
        return ana

    agent = with_tool(desk, desk.bank.pay, Call(5).args, requester=requester)
    running = asyncio.create_task(agent.run("pay"))
    [item] = await desk.asked()

    with pytest.raises(AssertionError, match="someone else has to decide"):
        await desk.approve(item)
    running.cancel()


def an_output(amount: int) -> int:
    """Act with the model's answer."""
    return amount


async def test_what_acts_past_the_gate_is_refused_at_construction(desk: Desk) -> None:
    def build(**options: Any) -> None:
        capabilities = options.pop("capabilities", [])
        approval = KeyturnApproval(AGENT, gateway=desk.gate, ungated=["calculate"])
        Agent(scripted([]), capabilities=[*capabilities, approval], **options)

    asks = Tool(desk.bank.pay, requires_approval=True)
    mcp = MCPServerTool(id="crm", url="https://crm.example.com/mcp")
    refused: dict[str, dict[str, Any]] = {
        "'an_output'": {"output_type": an_output},
        "is an output function": {"output_type": [str, ToolOutput(an_output)]},
        "'web_search'": {"capabilities": [NativeTool(WebSearchTool())]},
        "'mcp_server:crm'": {"capabilities": [NativeTool(mcp)]},
        "'pay'": {"tools": [asks]},
    }
    for words, options in refused.items():
        with pytest.raises(SettingsError, match=words):
            build(**options)
    build(output_type=Receipt, tools=[desk.bank.pay])


@pytest.mark.parametrize(
    "added",
    [
        {"capabilities": [NativeTool(WebSearchTool())]},
        {"toolsets": [ExternalToolset([ToolDefinition(name="elsewhere")])]},
        {"output_type": an_output},
    ],
    ids=["native", "external", "output"],
)
async def test_a_bypass_is_refused(desk: Desk, added: dict[str, Any]) -> None:
    def model(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        [tool] = info.output_tools
        return ModelResponse(parts=[ToolCallPart(tool.name, {"amount": 1})])

    approval = KeyturnApproval(AGENT, gateway=desk.gate)
    agent: Agent[None, Any] = Agent(FunctionModel(model), capabilities=[approval])

    with pytest.raises(SettingsError, match="of the agent 'adapter'"):
        await agent.run("pay", **added)


async def test_an_inner_tool_needs_its_own_permission(store: Store) -> None:
    policy = POLICY + "  look: {tier: auto}\n"
    async with Desk.on(store, policy) as desk:

        async def look(ctx: RunContext[None], amount: int, to: str) -> str:
            # Under the same id, as by a tool that passes its own context on.
            assert ctx.tool_manager is not None
            args, id_ = {"amount": amount, "to": to}, ctx.tool_call_id or ""
            part = ToolCallPart("wipe", args, tool_call_id=id_)
            return str(await ctx.tool_manager.handle_call(part))

        agent = Agent(
            scripted([Call(5, tool="look")]),
            tools=[look, desk.bank.wipe],
            capabilities=[KeyturnApproval(AGENT, gateway=desk.gate)],
        )
        told = told_in(await agent.run("look"))
    assert desk.bank.paid == [], told
