"""OpenAI Agents SDK: put people before the tools of an agent.

    agent = gate_tools(agent, "billing")
    result = await Runner.run(agent, "Refund order 61003.")

`gate_tools` copies the agent, its tools and the agents that it hands off to. A call is
proposed when the SDK starts it, and runs with exactly the authorized arguments. By
default a call waits in place. With ``durable=True`` the run pauses instead, and
continues after `decided`. Only the gateway decides: an approval by the program in a
`RunState` has no effect.

The SDK starts calls one by one, so each call is a turn in a separate lane.
"""

from __future__ import annotations

import asyncio
import json
import math
import weakref
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    RunContextWrapper,
    RunState,
    Tool,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    ToolSearchTool,
)
from agents.items import ToolApprovalItem
from agents.tool_context import ToolContext
from pydantic_core import to_jsonable_python

from keyturn.connect.asking import Asker, has_decision, schemas_of
from keyturn.connect.gate import Gate
from keyturn.connect.kept_values import defused
from keyturn.connect.once import CallReport, Work
from keyturn.gateway.client.claiming import HeldCall
from keyturn.gateway.errors import BadJson, SettingsError
from keyturn.gateway.protocol import strict_json
from keyturn.gateway.protocol.http_api import OpenQuestion
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.wire import (
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)

Context = RunContextWrapper[Any]

_OUTPUTS = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
_KINDS = {"text", "image", "file"}
_RAISES: dict[str, Any] = {
    # Private to the SDK. Without them, a failure is a text and counts as a success.
    "_failure_error_function": None,
    "_use_default_failure_error_function": False,
}


def gate_tools(  # noqa: PLR0913 - one keyword for each option
    agent: Agent[Any],
    name: str,
    *,
    gateway: Gate | str | None = None,
    api_key: str | None = None,
    durable: bool = False,
    limit_s: float = math.inf,
    thread: Callable[[Context], str] | None = None,
    requester: Callable[[Context], Person | None] | None = None,
    ungated: Collection[str] = (),
) -> Agent[Any]:
    """Return a copy of an agent that holds calls for people, as the policy demands.

    Args:
        agent: the agent; it is not changed.
        name: name in policy and cards, of the agent and of those it hands off to.
        gateway: the gateway, or its URL; by default ``KEYTURN_GATEWAY``.
        api_key: the key for a gateway at a URL; by default ``KEYTURN_API_KEY``.
        durable: pause the run instead of waiting; see `decided`.
        limit_s: seconds that a call waits for people before it is withdrawn.
        thread: returns the conversation of a run, the same for a saved state. By
            default each call is a thread; the id of the call must then be unique.
        requester: returns the requester of a run, who cannot approve its calls.
        ungated: names of tools and MCP servers that run without the gateway.

    Raises:
        SettingsError: when an argument cannot be used, or an agent has something that
            acts past the gate: a hosted tool, an MCP server, a stored prompt, a
            sandbox, an ungated agent as a tool, or a tool that asks by itself.
    """
    asker = Asker(name, gateway, api_key, ungated=ungated, limit_s=limit_s)
    return _Gates(asker, thread, requester, durable).agent(agent)


async def decided(state: RunState[Any, Any]) -> RunState[Any, Any]:
    """Wait for the decisions on the calls that paused a durable run; return its state.

    Continue the state with `Runner.run`, in any process and as often as needed: each
    call runs once. The program decides on the calls of other tools.
    """
    context = cast("Context", getattr(state, "_context", None))
    for item in state.get_interruptions():
        gated = _gated_tool(item)
        if gated is not None:
            turn = gated.turn(context, item.call_id or "", item.arguments or "")
            await gated.is_decided(context, turn, waits=True)
            state.approve(item)
    return state


def _gated_tool(item: ToolApprovalItem) -> _Gated | None:
    tools = cast("Sequence[Tool]", getattr(item.agent, "tools", ()))
    found = (it for it in tools if getattr(it, "name", None) == item.tool_name)
    invoke = getattr(next(found, None), "on_invoke_tool", None)
    return invoke if isinstance(invoke, _Gated) else None


@dataclass(frozen=True)
class _Gates:
    """Copies each agent once, so that agents may hand off to each other.

    ``copies`` also keeps the originals, so that no other object can get their ids.
    """

    asker: Asker
    thread: Callable[[Context], str] | None
    requester: Callable[[Context], Person | None] | None
    durable: bool
    copies: dict[int, tuple[Agent[Any], Agent[Any]]] = field(
        default_factory=dict[int, tuple[Agent[Any], Agent[Any]]]
    )

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the gated copy of an agent."""
        known = self.copies.get(id(agent))
        if known is not None:
            return known[1]
        self._check(agent)
        copy = agent.clone(tools=[self._tool(one) for one in agent.tools], handoffs=[])
        self.copies[id(agent)] = self.copies[id(copy)] = (agent, copy)
        copy.handoffs = [self._handoff(one) for one in agent.handoffs]
        return copy

    def _check(self, agent: Agent[Any]) -> None:
        if type(agent) is not Agent and agent.name not in self.asker.ungated:
            what = f"{type(agent).__name__} {agent.name!r}"
            self._refuse(what, "it may add tools to a run; use a plain Agent")
        owner = f"of {agent.name!r}"
        for server in agent.mcp_servers:
            if server.name not in self.asker.ungated:
                what = f"MCP server {server.name!r} {owner}"
                self._refuse(what, "put it behind `keyturn mcp`, which holds its calls")
        if agent.prompt is not None:
            advice = "it may add tools; write its text and tools"
            self._refuse(f"stored prompt {owner}", advice)

    def _tool(self, tool: Tool) -> Tool:
        if tool.name in self.asker.ungated or isinstance(tool, ToolSearchTool):
            return tool
        if not isinstance(tool, FunctionTool):
            what = f"{type(tool).__name__} {tool.name!r}"
            self._refuse(what, "use a function tool, which runs in this program")
        if isinstance(tool.on_invoke_tool, _Gated):
            return tool
        inner = cast("Agent[Any] | None", getattr(tool, "_agent_instance", None))
        if inner is not None:
            self._check_inner(inner, tool.name, set())
            return tool
        what = f"tool {tool.name!r}"
        if tool.needs_approval is not False:
            self._refuse(what, "remove needs_approval=, so that people are asked once")
        if tool.output_json_schema is not None:
            self._refuse(what, "remove its output schema, which a refusal does not fit")
        plain = replace(tool, timeout_seconds=None, **_RAISES)
        gated = _Gated(self, plain, tool.timeout_seconds)
        return replace(
            tool,
            on_invoke_tool=gated,
            needs_approval=gated.waits if self.durable else False,
            timeout_seconds=None,
        )

    def _check_inner(self, agent: Agent[Any], name: str, seen: set[int]) -> None:
        """Refuse an agent as a tool if its own tools bypass the gate."""
        if id(agent) in seen:
            return
        seen.add(id(agent))
        self._check(agent)
        advice = f"give gate_tools() that agent before .as_tool() makes {name!r}"
        for tool in agent.tools:
            inner = cast("Agent[Any] | None", getattr(tool, "_agent_instance", None))
            is_gated = isinstance(getattr(tool, "on_invoke_tool", None), _Gated)
            if inner is not None:
                self._check_inner(inner, name, seen)
            elif not (is_gated or tool.name in self.asker.ungated):
                self._refuse(f"tool {tool.name!r} of {agent.name!r}", advice)
        for one in agent.handoffs:
            is_gated = isinstance(one, Handoff) and isinstance(
                one.on_invoke_handoff, _GatedHandoff
            )
            if isinstance(one, Agent):
                self._check_inner(one, name, seen)
            elif not is_gated:
                self._refuse(f"handoff of {agent.name!r}", advice)

    def _handoff(
        self, given: Agent[Any] | Handoff[Any, Any]
    ) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(given, Agent):
            return self.agent(given)
        copy = replace(
            given, on_invoke_handoff=_GatedHandoff(self, given.on_invoke_handoff)
        )
        ref = cast("Any", getattr(given, "_agent_ref", None))
        target = ref and ref()
        if target is not None:
            # A saved state finds its agents by this reference.
            setattr(copy, "_agent_ref", weakref.ref(self.agent(target)))  # noqa: B010
        return copy

    def _refuse(self, what: str, advice: str) -> NoReturn:
        raise SettingsError(
            f"The {what} bypasses the gate of {self.asker.agent!r}: {advice}, "
            "or list its name in ungated= to run it without approvals."
        )


@dataclass(frozen=True, eq=False)
class _GatedHandoff:
    """Hands off to the gated copy of an agent."""

    gates: _Gates
    invoke: Callable[[Context, str], Awaitable[Agent[Any]]]

    async def __call__(self, context: Context, text: str) -> Agent[Any]:
        return self.gates.agent(await self.invoke(context, text))


@dataclass(frozen=True, eq=False)
class _Gated:
    """Invokes a tool once its call is authorized."""

    gates: _Gates
    tool: FunctionTool
    timeout_s: float | None

    async def __call__(self, context: ToolContext[Any], text: str) -> object:
        turn = self.turn(context, context.tool_call_id, text)
        verdict = await self.verdict(context, turn)

        async def run(args: object, _permit: object) -> object:
            context.tool_arguments = json.dumps(args)
            # The timeout is for the run, not for the wait for people.
            async with asyncio.timeout(self.timeout_s):
                returned = await self.tool.on_invoke_tool(
                    context, context.tool_arguments
                )
            return _as_output(returned)

        held = HeldCall(turn.ref, verdict, turn.calls[0].args)
        return _to_model(await self.gates.asker.run(held, Work(run)))

    async def waits(self, context: Context, args: dict[str, Any], call_id: str) -> bool:
        """Return True if people have not decided on a call yet."""
        turn = self.turn(context, call_id, json.dumps(args))
        return not await self.is_decided(context, turn, waits=False)

    async def is_decided(self, context: Context, turn: Turn, *, waits: bool) -> bool:
        """Return True if a call needs no decision; wait for it if ``waits``."""
        verdict = await self.verdict(context, turn)
        if verdict.kind is not VerdictKind.HOLD:
            return True
        gate, question = self.gates.asker.gate, OpenQuestion.about(verdict)
        return await has_decision(gate, turn.ref.run_ref, question, waits=waits)

    def turn(self, context: Context, call_id: str, text: str) -> Turn:
        """Return the turn of one call."""
        try:
            args, problem = strict_json.parse_object(text or "{}"), ""
        except BadJson as error:
            args, problem = {}, str(error)
        call = ProposedCall(
            tool=self.tool.name, args=args, tool_call_id=call_id, problem=problem
        )
        thread = self.gates.thread(context) if self.gates.thread else call_id
        ref = TurnRef(
            agent=self.gates.asker.agent,
            thread=thread,
            ns=call_id.replace("|", "/"),
            message_id=call_id,
        )
        schemas = schemas_of({self.tool.name: self.tool.params_json_schema})
        return Turn(ref=ref, calls=(call,), schemas=schemas)

    async def verdict(self, context: Context, turn: Turn) -> Verdict:
        """Propose the call; a repeated proposal gets the same verdict."""
        requester = self.gates.requester and self.gates.requester(context)
        return await self.gates.asker.verdict(turn, turn.calls[0], requester)


def _as_output(returned: object) -> object:
    """Return a tool's return value as the SDK would convert it, as plain data."""
    if isinstance(returned, str):
        return returned
    is_list = isinstance(returned, list)
    parts = cast("list[object]", returned) if is_list else [returned]
    if all(_is_part(one) for one in parts):
        return [to_jsonable_python(one, exclude_none=True) for one in parts]
    return str(returned)


def _is_part(value: object) -> bool:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).get("type") in _KINDS
    return isinstance(value, _OUTPUTS)


def _to_model(report: CallReport[object]) -> object:
    if report.value is None or isinstance(report.value.is_, str):
        return report.in_words(str)
    notice = [{"type": "text", "text": report.notice}] if report.notice else []
    return [*notice, *cast("list[object]", defused(report.value.is_))]
