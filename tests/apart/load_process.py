"""An agent that pays several times in each of many threads, one after the other.

Usage: load_process.py CHECKPOINTS URL_OF_THE_EFFECT TIMES THREAD ...

SIGTERM ends it as a supervisor would: running calls are finished, and no new ones
begin.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import httpx
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from keyturn import Keyturn
from keyturn.agent import ApprovalMiddleware, grant, guarded
from keyturn.agent.scripted_model import ScriptedModel, calling
from tests.apart.agent_process import AGENT, DAN, EFFECT_S, SOON, TOOL


async def work(checkpoints: str, effect: str, times: int, threads: list[str]) -> None:
    """Run every thread to its end."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        done = sum(isinstance(one, ToolMessage) for one in messages)
        if done == times:
            return AIMessage(f"{done} calls were answered")
        return calling((TOOL, {"amount": done + 1}, f"c{done}"))

    async with (
        AsyncSqliteSaver.from_conn_string(checkpoints) as saver,
        httpx.AsyncClient(timeout=EFFECT_S) as client,
        Keyturn.remote(retries=SOON) as tk,
    ):

        async def run(thread: str) -> None:
            @guarded
            @tool
            async def pay(amount: float) -> str:
                """Pay."""
                key = grant().idempotency_key
                sent = {"thread": thread, "key": key, "amount": amount}
                return (await client.post(effect, json=sent)).text

            graph = create_agent(
                ScriptedModel(reply=reply),
                [pay],
                middleware=[ApprovalMiddleware(AGENT)],
                checkpointer=saver,
            )
            given = {"messages": [("user", "pay")]}
            final = await tk.run(
                graph, given, thread_id=thread, agent=AGENT, requester=DAN
            )
            print(thread, final["messages"][-1].text)  # noqa: T201 - how it answers

        running = asyncio.gather(*map(run, threads))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            print("stopped")  # noqa: T201 - likewise


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
