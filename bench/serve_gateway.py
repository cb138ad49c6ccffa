"""Serve a gateway that runs an agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.clicks import AGENT, POLICY
from bench.payments_stub import refunding_agent
from bench.serve import Name, Run, ServerSettings
from bench.store_secrets import SECRETS
from twokey.gateway.resume.checkpoints import open_checkpoints
from twokey.gateway.resume.graphs import attached
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.running import running
from twokey.gateway.store.store import Store


@asynccontextmanager
async def _gateway(settings: ServerSettings) -> AsyncGenerator[str]:
    """Run agents, without Slack."""
    store = Store(settings.store_url, secrets=SECRETS)
    graph = refunding_agent(Path(settings.effects))
    try:
        async with open_checkpoints(settings.checkpoints) as saver:
            runners = {AGENT: LangGraphLocal(attached(graph, saver))}
            async with running(store, lambda: POLICY, runners):
                yield "gateway"
    finally:
        await store.close()


RUNS: dict[Name, Run] = {"gateway": _gateway}
