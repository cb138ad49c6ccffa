"""An agent that asks people with LangChain's own middleware, and knows no Keyturn.

The setting ``own_gate`` puts its questions on cards. Without a real model
(``KEYTURN_DEMO_MODEL``), a scripted one plays the agent. ``KEYTURN_DEMO_LEDGER`` is a
file that gets one JSON line for every effect of a tool.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.chat_models import init_chat_model
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.tools import tool

from keyturn.agent.scripted_model import ScriptedModel  # only plays the model


@tool
def cancel_order(order_id: str, cause: str) -> str:
    """Cancel an order that has not left the warehouse."""
    ledger = os.environ.get("KEYTURN_DEMO_LEDGER")
    if ledger:
        row = {"tool": "cancel_order", "args": {"order_id": order_id, "cause": cause}}
        with Path(ledger).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return f"Cancelled order {order_id}: {cause}."


def next_message(messages: list[BaseMessage]) -> AIMessage:
    """Play the model: cancel the order of the last request, then report the result."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(str(last.text))
    number = (
        re.search(r"\d{5}", str(last.text)) if isinstance(last, HumanMessage) else None
    )
    if number is None:
        return AIMessage("I can cancel an order. Try: crm cancel order 78304.")
    args = {"order_id": number.group(), "cause": "The customer changed their mind"}
    call = ToolCall(name="cancel_order", args=args, id=f"call_{len(messages)}")
    return AIMessage("The lamp is still here, so I cancel it.", tool_calls=[call])


name = os.environ.get("KEYTURN_DEMO_MODEL")
graph = create_agent(
    init_chat_model(name) if name else ScriptedModel(reply=next_message),
    tools=[cancel_order],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"cancel_order": True})],
)
