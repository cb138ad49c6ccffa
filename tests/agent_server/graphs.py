"""Agents of the tests' Agent Server, written without Keyturn.

Their model plays a script: the message of a person is a JSON list with the calls of
each step. Tools append to the file `EFFECTS`, so a test can count what happened.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType] - its types are partial
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from keyturn.agent import ApprovalMiddleware
from tests.agent_server.quick_queue import shorten_pauses

shorten_pauses()
EFFECTS = Path(os.environ.get("EFFECTS", "effects.jsonl"))
GATEWAY = EFFECTS.with_name("gateway.json")
NO_GATEWAY = {"gateway": "http://127.0.0.1:1", "api_key": "tk_none"}


def effect(kind: str, config: RunnableConfig, **facts: Any) -> str:
    """Record an effect on the world, with its thread and user."""
    configurable = config.get("configurable", {})
    line = {
        "kind": kind,
        "thread": str(configurable.get("thread_id")),
        "user": configurable.get("user"),
        **facts,
    }
    if identity := configurable.get("langgraph_auth_user_id"):
        line["as"] = identity
    with EFFECTS.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(line)}\n")
    return f"{kind} {json.dumps(facts, sort_keys=True)}"


@tool
def refund(order: str, amount: float, config: RunnableConfig) -> str:
    """Pay the amount of an order back."""
    return effect("refund", config, order=order, amount=amount)


@tool
def send_mail(to: str, text: str, config: RunnableConfig) -> str:
    """Send a message."""
    return effect("send_mail", config, to=to, text=text)


@tool
def look(order: str, config: RunnableConfig) -> str:
    """Read an order."""
    return effect("look", config, order=order)


class Script(BaseChatModel):
    """A chat model that makes the calls of the last person's message, step by step."""

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """Accept any tools: the script has their names."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        last = max(n for n, one in enumerate(messages) if one.type == "human")
        step = sum(one.type == "ai" for one in messages[last:])
        steps: list[list[Any]] = json.loads(messages[last].text)
        calls = steps[step] if step < len(steps) else []
        message = AIMessage(
            "" if calls else "done",
            tool_calls=[
                ToolCall(name=name, args=args, id=f"call-{last}-{step}-{n}")
                for n, (name, args) in enumerate(calls)
            ],
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


@tool
def fail(order: str, config: RunnableConfig) -> str:
    """Do something, and fail afterwards."""
    effect("fail", config, order=order)
    raise RuntimeError("the printer is on fire")


TOOLS = [refund, send_mail, look]
ASK: dict[str, Any] = {
    "refund": True,
    "send_mail": {"allowed_decisions": ["approve", "reject"]},
}

stock = create_agent(
    Script(), TOOLS, middleware=[HumanInTheLoopMiddleware(interrupt_on=ASK)]
)
per_call = create_agent(
    Script(),
    TOOLS,
    middleware=[HumanInTheLoopMiddleware(interrupt_on=ASK, interrupt_mode="per_call")],
)


@tool
def pay(amount: int, to: str, config: RunnableConfig) -> str:
    """Pay an amount to a person."""
    effect("pay", config, amount=amount, to=to)
    return f"paid {amount} to {to}"


@tool
def wipe(amount: int, to: str, config: RunnableConfig) -> str:
    """Delete an account."""
    return effect("wipe", config, amount=amount, to=to)


promised = create_agent(
    Script(),
    [pay, wipe],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True, "wipe": True})],
)
failing = create_agent(
    Script(),
    [fail],
    middleware=[
        HumanInTheLoopMiddleware(interrupt_on={"fail": True}, interrupt_mode="per_call")
    ],
)
deep = cast("Any", create_deep_agent)(
    model=Script(),
    tools=[look],
    subagents=[
        {
            "name": "payer",
            "description": "Pays.",
            "system_prompt": "Pay.",
            "tools": [*TOOLS, fail],
            "model": Script(),
            "interrupt_on": {**ASK, "fail": True},
        }
    ],
)


def gated() -> Any:
    """Make an agent with Keyturn's middleware, for a gateway of the running test."""
    given: dict[str, Any] = NO_GATEWAY
    if GATEWAY.exists():
        given = json.loads(GATEWAY.read_text("utf-8"))
    middleware = ApprovalMiddleware("a-gated", **given)
    return create_agent(Script(), [refund, look], middleware=[middleware])


class Said(TypedDict):
    """State of the graphs below: questions and answers."""

    ask: Any
    said: NotRequired[list[Any]]


def _graph(node: Any) -> Any:
    graph: Any = StateGraph(Said)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile()


def _inbox(state: Said, config: RunnableConfig) -> dict[str, Any]:
    """Ask in the format of Agent Inbox, and pay the answered amount."""
    answer = interrupt([state["ask"]])[0]
    request = state["ask"]["action_request"]
    if answer["type"] == "accept":
        effect("refund", config, **request["args"])
    elif answer["type"] == "edit":
        effect("refund", config, **answer["args"]["args"])
    return {"said": [answer]}


def _camel(state: Said, config: RunnableConfig) -> dict[str, Any]:
    """Ask as LangChain's JavaScript does."""
    request = state["ask"]
    answer = interrupt(
        {
            "actionRequests": [{"name": "refund", "args": request}],
            "reviewConfigs": [
                {
                    "actionName": "refund",
                    "allowedDecisions": ["approve", "edit", "reject"],
                }
            ],
        }
    )
    (decision,) = answer["decisions"]
    if decision["type"] == "approve":
        effect("refund", config, **request)
    elif decision["type"] == "edit":
        effect("refund", config, **decision["editedAction"]["args"])
    return {"said": [decision]}


def _plain(state: Said, config: RunnableConfig) -> dict[str, Any]:
    """Ask each question in turn, in the same node."""
    said = list[Any]()
    for question in state["ask"]:
        effect("asking", config, n=len(said))
        said.append(interrupt(question))
    return {"said": said}


inbox = _graph(_inbox)
camel = _graph(_camel)
plain = _graph(_plain)
