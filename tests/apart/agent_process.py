"""An agent with only a URL and an API key: it pays once, and reports the result.

Usage: agent_process.py THREAD CHECKPOINTS URL_OF_THE_EFFECT
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import httpx
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from keyturn import Keyturn
from keyturn.agent import ApprovalMiddleware, grant, guarded
from keyturn.agent.scripted_model import ScriptedModel, calling
from keyturn.gateway.client import http_connection
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.resume import program_runs
from keyturn.gateway.setting_forms import RetrySettings

AGENT, TOOL = "support", "pay"
DAN = Person(team="T0SANDBOX", user="U0DAN", name="Dan")
EFFECT_S = 300.0
SOON = RetrySettings(first=timedelta(milliseconds=20), longest=timedelta(seconds=1))


def reply(messages: list[BaseMessage]) -> AIMessage:
    """Pay once, then report the result; a model that knows only the messages."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(last.text)
    return calling((TOOL, {"amount": 9.0}, "c1"))


async def work(thread: str, checkpoints: str, effect: str) -> str:
    """Run the thread to its end, and return the agent's last message."""

    @guarded
    @tool
    async def pay(amount: float) -> str:
        """Pay."""
        sent = {"thread": thread, "key": grant().idempotency_key, "amount": amount}
        async with httpx.AsyncClient(timeout=EFFECT_S) as client:
            reply = await client.post(effect, json=sent)
        return reply.text

    async with (
        AsyncSqliteSaver.from_conn_string(checkpoints) as saver,
        Keyturn.remote(retries=SOON) as tk,
    ):
        graph = create_agent(
            ScriptedModel(reply=reply),
            [pay],
            middleware=[ApprovalMiddleware(AGENT)],
            checkpointer=saver,
        )
        given = {"messages": [("user", "pay")]}
        final = await tk.run(graph, given, thread_id=thread, agent=AGENT, requester=DAN)
    return str(final["messages"][-1].text)


if __name__ == "__main__":
    # A gateway that does not answer is asked again soon.
    http_connection.TIMEOUT_S = 2.0
    program_runs.POLL_S = 1.0
    print(asyncio.run(work(*sys.argv[1:4])))  # noqa: T201 - how it answers
