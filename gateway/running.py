"""Run the agents of one process: workers, the clock, and their way to the gateway."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

from gateway.config import Settings
from gateway.policy.rules import Policy
from gateway.resume.checkpoints import open_checkpoints
from gateway.resume.every_loop import EveryLoop
from gateway.resume.graphs import attached, load_graph
from gateway.resume.langgraph_local import LangGraphLocal
from gateway.resume.orphans import OrphanFinder
from gateway.resume.runner import Runner
from gateway.resume.sweeping import ORPHANS_S, SWEEP_S, repeat
from gateway.resume.worker import GRACE_S, Rested, Worker, nobody
from gateway.service.sweep import Sweeper
from gateway.store.store import Store


@asynccontextmanager
async def open_runners(settings: Settings) -> AsyncGenerator[dict[str, Runner]]:
    """Load every agent's graph and open the place where its threads are kept.

    Raises:
        GraphError: when a graph cannot be loaded.
        SettingsError: when the checkpoints cannot be opened.
    """
    base = settings.data_dir.parent
    graphs = {
        name: await load_graph(agent.graph, base)
        for name, agent in settings.agents.items()
    }
    async with open_checkpoints(settings.checkpoints.get_secret_value()) as saver:
        yield {
            name: LangGraphLocal(attached(graph, saver))
            for name, graph in graphs.items()
        }


@asynccontextmanager
async def running(
    store: Store,
    policy: Callable[[], Policy],
    runners: Mapping[str, Runner],
    *,
    tenant: str = "default",
    slots: int = 8,
    grace_s: float = GRACE_S,
    at_rest: Callable[[Rested], None] = nobody,
) -> AsyncGenerator[EveryLoop]:
    """Work on jobs and let time pass while the block runs; then stop with grace.

    Yields:
        The gateway that agents of this process are connected to.
    """
    gateway = EveryLoop(store, policy, tenant=tenant)
    consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    worker = Worker(
        store,
        gateway,
        gateway.home,
        runners,
        consumer=consumer,
        tenant=tenant,
        slots=slots,
        at_rest=at_rest,
    )
    orphans = OrphanFinder(store, runners, consumer=consumer)
    stop = asyncio.Event()
    tasks = [
        asyncio.create_task(worker.run(stop, grace_s=grace_s)),
        asyncio.create_task(repeat(Sweeper(store).sweep, stop, every_s=SWEEP_S)),
        asyncio.create_task(repeat(orphans.look, stop, every_s=ORPHANS_S)),
    ]
    try:
        yield gateway
    finally:
        stop.set()
        await asyncio.gather(*tasks)
        await gateway.close()
