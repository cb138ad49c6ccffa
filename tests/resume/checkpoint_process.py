"""Open a checkpoint file in a separate process, write three steps, and close it.

Started by the tests: ``python -m tests.resume.checkpoint_process FILE THREAD``.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from keyturn.gateway.resume.checkpoints import open_checkpoints


class Count(TypedDict):
    """A state with a number in it."""

    n: int


def _add(state: Count) -> Count:
    return {"n": state["n"] + 1}


async def keep_step(saver: BaseCheckpointSaver[Any], thread: str) -> None:
    """Run a graph of one node in a thread."""
    builder: Any = StateGraph(Count)
    builder.add_node("add", _add)
    builder.add_edge(START, "add")
    graph = builder.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": thread}}
    await graph.ainvoke({"n": 0}, config, durability="sync")


async def keep_steps(path: str, thread: str) -> None:
    """Open the file, keep three steps of a thread, and close it."""
    async with open_checkpoints(path) as saver:
        for _ in range(3):
            await keep_step(saver, thread)


if __name__ == "__main__":
    asyncio.run(keep_steps(sys.argv[1], sys.argv[2]))
