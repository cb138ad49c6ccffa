"""Agents of other libraries that ask people, each with a scripted model.

Each agent proposes the calls of its thread's message, and its tools append what they
did to ``effects``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, cast

from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType] - its types are partial
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import interrupt

from keyturn.agent.scripted_model import ScriptedModel
from tests.resume import sample_tools

Graph = Pregel[Any, Any, Any, Any]
Effect = tuple[str, dict[str, Any]]
Call = dict[str, Any]
FAILS = "fails"
"""An order with which every tool of these agents raises."""
SUBAGENTS = ("billing", "mailing")
KINDS = ("approve", "edit", "reject", "respond")


@dataclass
class Agent:
    """A graph, what its tools did, and the subagents that have them."""

    graph: Any
    effects: list[Effect] = field(default_factory=list[Effect])
    subagents: tuple[str, ...] = ()

    def given(self, calls: Sequence[Call]) -> dict[str, Any]:
        """Return the input that makes the agent propose these calls."""
        return {"messages": [HumanMessage(json.dumps([*calls]))]}


def called(messages: Sequence[BaseMessage]) -> AIMessage:
    """Propose the calls in the person's message, then repeat the tools' answers."""
    if isinstance(messages[-1], ToolMessage):
        return AIMessage("\n".join(str(one.text) for one in messages))
    calls = json.loads(str(messages[-1].text))
    rows = [
        {**one, "id": f"call-{len(messages)}-{place}"}
        for place, one in enumerate(calls)
    ]
    return AIMessage("", tool_calls=rows)


def record(effects: list[Effect], name: str, args: dict[str, Any]) -> None:
    """Note an effect, also in the ledger that outlives a process."""
    if args["order"] == FAILS:
        sample_tools.note("tried")
        raise RuntimeError("the bank is closed")
    effects.append((name, args))
    if sample_tools.LEDGER in os.environ:
        sample_tools.note(json.dumps([name, args]))


def tools(names: Sequence[str], effects: list[Effect]) -> list[BaseTool]:
    """Return tools that record their arguments."""

    def of(name: str) -> BaseTool:
        def run(order: str, amount: float = 1.0) -> str:
            record(effects, name, {"order": order, "amount": amount})
            return f"{name} ran with {order} and {amount}"

        return StructuredTool.from_function(run, name=name, description=name)

    return [of(name) for name in names]


def langchain(
    rules: Mapping[str, Sequence[str]],
    *,
    mode: str = "batched",
    free: str = "look",
    when: Callable[[Any], bool] | None = None,
    gate: tuple[str, Any] | None = None,
) -> Agent:
    """Make an agent with LangChain's middleware, and a tool that runs unasked.

    ``gate`` is another middleware, "ours" before it or after it.
    """
    effects: list[Effect] = []
    make = cast("Callable[..., Graph]", create_agent)
    hitl = HumanInTheLoopMiddleware(
        cast("Any", _options(rules, when)), interrupt_mode=cast("Any", mode)
    )
    before = [gate[1]] if gate and gate[0] == "ours" else []
    after = [gate[1]] if gate and not before else []
    graph = make(
        ScriptedModel(reply=called),
        tools=tools([*rules, free], effects),
        middleware=[*before, hitl, *after],
        checkpointer=InMemorySaver(),
    )
    return Agent(graph, effects)


def _options(
    rules: Mapping[str, Sequence[str]], when: Callable[[Any], bool] | None = None
) -> dict[str, Any]:
    more = {"when": when} if when else {}
    return {
        name: {"allowed_decisions": [*each], **more} for name, each in rules.items()
    }


def deep_agent(rules: Mapping[str, Sequence[str]], *, extra: str = "") -> Agent:
    """Make an agent of deepagents with two subagents that have the tools."""
    effects: list[Effect] = []
    options, names = _options(rules), [*rules, extra] if extra else [*rules]
    model, own = ScriptedModel(reply=called), tools(names, effects)
    subagents = [
        {
            "name": name,
            "description": name,
            "system_prompt": name,
            "model": model,
            "tools": own,
            "interrupt_on": options,
        }
        for name in SUBAGENTS
    ]
    graph: Any = create_deep_agent(  # pyright: ignore[reportUnknownVariableType]
        model,
        tools=own,
        subagents=cast("Any", subagents),
        interrupt_on=cast("Any", options),
        checkpointer=InMemorySaver(),
    )
    return Agent(cast("Graph", graph), effects, SUBAGENTS)


def inbox(rules: Mapping[str, Sequence[str]], *, as_list: bool) -> Agent:
    """Make a graph that asks in the format of Agent Inbox."""
    allows = {
        "approve": "allow_accept", "edit": "allow_edit",
        "reject": "allow_ignore", "respond": "allow_respond",
    }  # fmt: skip

    def request(call: Call) -> dict[str, Any]:
        config = {allows[one]: one in rules[call["name"]] for one in KINDS}
        action = {"action": call["name"], "args": call["args"]}
        return {"action_request": action, "config": config, "description": "Look."}

    def respond(call: Call, response: dict[str, Any], effects: list[Effect]) -> str:
        match response["type"]:
            case "accept" if "approve" in rules[call["name"]]:
                record(effects, call["name"], call["args"])
                return "ran"
            case "edit" if "edit" in rules[call["name"]]:
                assert response["args"]["action"] == call["name"]
                record(effects, call["name"], response["args"]["args"])
                return "ran"
            case "ignore" if "reject" in rules[call["name"]]:
                assert response["args"] is None
                return "ignored"
            case "response" if "respond" in rules[call["name"]]:
                return str(response["args"])
            case other:
                raise AssertionError(other)

    def asked(calls: Sequence[Call], effects: list[Effect]) -> list[str]:
        if not calls:
            return []
        requests = [request(one) for one in calls]
        responses = interrupt(requests if as_list else requests[0])
        rows = zip(calls, responses, strict=True)
        return [respond(call, one, effects) for call, one in rows]

    return _handmade(asked)


def javascript(rules: Mapping[str, Sequence[str]]) -> Agent:
    """Make a graph that checks answers as langchain 1.5 for JavaScript does."""

    def run(call: Call, said: dict[str, Any], effects: list[Effect]) -> str:
        kind = said["type"]
        if kind not in rules[call["name"]]:
            raise ValueError(f"Unexpected human decision: {said}")
        if kind == "edit":
            edited = said["editedAction"]
            assert edited["name"] == call["name"]
            assert isinstance(edited["args"], dict)
        if kind in {"approve", "edit"}:
            args = said["editedAction"]["args"] if kind == "edit" else call["args"]
            record(effects, call["name"], args)
            return "ran"
        assert isinstance(said.get("message", ""), str)
        return str(said.get("message", ""))

    def asked(calls: Sequence[Call], effects: list[Effect]) -> list[str]:
        decisions = interrupt(
            {
                "actionRequests": [
                    {"name": one["name"], "args": one["args"], "description": "d"}
                    for one in calls
                ],
                "reviewConfigs": [
                    {"actionName": one["name"], "allowedDecisions": rules[one["name"]]}
                    for one in calls
                ],
            }
        )["decisions"]
        rows = zip(calls, decisions, strict=True)
        return [run(call, one, effects) for call, one in rows]

    return _handmade(asked)


class _State(TypedDict):
    messages: list[Any]
    said: list[str]


def _handmade(asked: Callable[[Sequence[Call], list[Effect]], list[str]]) -> Agent:
    effects: list[Effect] = []

    def node(state: _State) -> dict[str, Any]:
        calls = json.loads(str(state["messages"][-1].content))
        return {"said": asked(calls, effects)}

    builder: Any = StateGraph(_State)
    builder.add_node("work", node)
    builder.add_edge(START, "work")
    return Agent(builder.compile(checkpointer=InMemorySaver()), effects)
