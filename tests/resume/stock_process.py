"""A gateway that runs a stock agent, and dies at one point of a hand-over.

python -m tests.resume.stock_process URL FOLDER AGENT POINT
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.store import Store
from tests.dialects import sample_agents
from tests.dialects.sample_agents import KINDS, Agent
from tests.resume.resume_stack import Stack
from tests.store_secrets import SECRETS

LEASE_MS = 400
ALL = {"pay": KINDS, "mail": KINDS}
AGENTS: dict[str, Callable[[], Agent]] = {
    "batched": lambda: sample_agents.langchain(ALL),
    "per call": lambda: sample_agents.langchain(ALL, mode="per_call"),
    "deepagents": lambda: sample_agents.deep_agent(ALL),
    "Agent Inbox": lambda: sample_agents.inbox(ALL, as_list=True),
}
POINTS: dict[str, tuple[type, str, bool]] = {
    "asked": (AgentService, "submit", True),
    "claimed": (AgentService, "claim", True),
    "sending": (Runner, "resume", False),
    "taken": (Runner, "resume", True),
    "ended": (AgentService, "hand_over", True),
}
"""Class, method, and whether the process dies after it instead of before it."""


def die_at(point: str) -> None:
    """Kill this process at the first call of a method."""
    kind, name, is_after = POINTS[point]
    real: Any = getattr(kind, name)

    async def dying(*given: Any, **named: Any) -> Any:
        if is_after:
            await real(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(kind, name, dying)


async def main(url: str, folder: str, agent: str, point: str) -> None:
    """Run the agent until the process dies."""
    die_at(point)
    store = Store(url, secrets=SECRETS, lease_ms=LEASE_MS)
    async with open_checkpoints(str(Path(folder) / "checkpoints.db")) as saver:
        graph = attached(AGENTS[agent]().graph, saver)
        stack = Stack(store, Runner(graph, agent="shop", hands_over=True), saver)
        async with stack.working():
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
