r"""The support agent in a separate process, with the gateway's URL and an API key.

    KEYTURN_GATEWAY=https://gateway.example.com KEYTURN_API_KEY=tk_… \
        python -m examples.agent_apart order-78291 "refund order 78291"

It stores its thread in ``agent_apart.sqlite`` in the current folder, or in the file
that ``AGENT_THREADS`` names. It can be killed at any moment: started again with the
same text, it continues, and finished calls do not run again. It ends with the agent's
answer.
"""

from __future__ import annotations

import asyncio
import os
import sys

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from examples.support_agent import graph
from keyturn import Keyturn
from keyturn.gateway.protocol.records import Person

DAN = Person(team="T0SANDBOX", user="U0DAN", name="Dan Díaz")


async def answer(thread: str, text: str) -> str:
    """Run the agent's thread to its end, and return its last message."""
    place = os.environ.get("AGENT_THREADS", "agent_apart.sqlite")
    async with (
        AsyncSqliteSaver.from_conn_string(place) as saver,
        Keyturn.remote() as tk,
    ):
        final = await tk.run(
            graph.copy(update={"checkpointer": saver}),
            {"messages": [("user", text)]},
            thread_id=thread,
            agent="support",
            requester=DAN,  # the requester cannot approve the resulting calls
        )
    return str(final["messages"][-1].text)


if __name__ == "__main__":
    print(asyncio.run(answer(*sys.argv[1:3])))
