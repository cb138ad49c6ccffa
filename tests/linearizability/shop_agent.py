"""An agent whose tool notes when it took effect; `keyturn gateway` runs it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast
from uuid import uuid4

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.pregel import Pregel

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import ScriptedModel, calling
from tests.linearizability.history import Operation

AGENT = "shop"
EFFECTS = "LINEARIZABILITY_EFFECTS"


@tool
def refund(order: str, call_id: Annotated[str, InjectedToolCallId]) -> str:
    """Give money back."""
    # One append of one short line, so that those of two processes do not mix.
    line = f"{call_id} {order} {time.monotonic_ns()}\n"
    file = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
    return f"refunded {order}"


def effects(path: Path) -> list[Operation]:
    """Return every effect as an operation of one moment on the call that had it."""
    found: list[Operation] = []
    for line in path.read_text("ascii").splitlines() if path.exists() else ():
        call, order, at = line.split()
        found.append(Operation(call, "effect", (order,), int(at), int(at)))
    return found


def _reply(messages: list[BaseMessage]) -> AIMessage:
    last = messages[-1]
    if not isinstance(last, HumanMessage):
        return AIMessage("Done.")
    # As models do: a call that is asked for again has another id.
    return calling(("refund", {"order": str(last.text)}, f"call-{uuid4().hex}"))


def graph() -> Pregel[Any, Any, Any, Any]:
    """Make the agent."""
    make = cast("Callable[..., Pregel[Any, Any, Any, Any]]", create_agent)
    return make(
        ScriptedModel(reply=_reply),
        tools=[guarded(refund)],
        middleware=[ApprovalMiddleware(AGENT)],
    )
