"""Run a process's agents: workers, periodic sweep and gateway client."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from twokey.gateway.config import Settings
from twokey.gateway.errors import GraphError, SettingsError
from twokey.gateway.policy.rules import Policy
from twokey.gateway.resume.graph_audit import check_name
from twokey.gateway.resume.graphs import attached, load_graph
from twokey.gateway.resume.identity import identity_of
from twokey.gateway.resume.imports import made_by, named
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.resume.orphans import OrphanFinder
from twokey.gateway.resume.periodic import (
    AUDIT_S,
    FORGET_S,
    ORPHANS_S,
    SPREAD_S,
    SWEEP_S,
    repeat,
)
from twokey.gateway.resume.recovery_loop import TICK_S, RecoveryLoop
from twokey.gateway.resume.retries import Retries
from twokey.gateway.resume.runner import Runner
from twokey.gateway.resume.runners import Runners
from twokey.gateway.resume.worker import GRACE_S, ThreadChange, Worker, ignore
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.audit_writing import AuditWriter, end_audit
from twokey.gateway.service.process_check import process_name
from twokey.gateway.service.resealing import reseal
from twokey.gateway.service.split_freezes import SplitFreezes
from twokey.gateway.service.sweep import Sweeper
from twokey.gateway.store.processes import ProcessInfo
from twokey.gateway.store.readers import forget_consumers
from twokey.gateway.store.store import Store
from twokey.gateway.triage.asking import Triage, require_triage

logger = logging.getLogger(__name__)


async def load_runners(
    settings: Settings, saver: BaseCheckpointSaver[Any]
) -> dict[str, Runner]:
    """Load the graph of every agent that the settings name.

    Raises:
        GraphError: one sentence about the first that cannot be used.
    """
    runners: dict[str, Runner] = {}
    for name, agent in settings.agents.items():
        # A module may take half a minute, and then nothing else says what is going on.
        logger.info("agent.importing agent=%s graph=%s", name, agent.graph)
        graph = await load_graph(agent.graph, settings.folder, agent.ungated)
        check_name(graph, name)
        runners[name] = LangGraphLocal(
            attached(graph, saver), agent=name, ungated=agent.ungated
        )
    return runners


async def load_triage(settings: Settings) -> Triage | None:
    """Load what the settings name as triage; None when they name nothing.

    The name may be an object with a coroutine ``assess``, or a class or function
    without arguments that makes one, synchronous or not.

    Raises:
        SettingsError: one sentence that says what is missing or went wrong.
    """
    ref = settings.triage
    if ref is None:
        return None
    try:
        found = named(ref, settings.policy.path.parent.resolve(), what="triage")
        if isinstance(found, type) or not hasattr(found, "assess"):
            found = await made_by(found, ref, what="triage")
    except GraphError as error:
        raise SettingsError(f"'triage': {error}") from error
    return require_triage(found, repr(ref))


async def gateway_process(
    saver: BaseCheckpointSaver[Any], place: str, *, tenant: str, serves: Collection[str]
) -> ProcessInfo:
    """Return what a gateway says of itself to the others.

    Args:
        saver: keeps the threads.
        place: what the saver was opened with.
        tenant: whose agents these are.
        serves: agents of which every thread is advanced.
    """
    identity = await identity_of(saver, place)
    return ProcessInfo(
        role="gateway",
        where=process_name(),
        tenant=tenant,
        serves=tuple(serves),
        checkpoints=identity.id,
        file=identity.file,
        shown=identity.shown,
    )


@asynccontextmanager
async def running(
    store: Store,
    policy: Callable[[], Policy],
    runners: Runners | Mapping[str, Runner],
    *,
    tenant: str = "default",
    triage: Triage | None = None,
    slots: int = 8,
    grace_s: float = GRACE_S,
    on_change: Callable[[ThreadChange], None] = ignore,
) -> AsyncGenerator[AgentService]:
    """Work on jobs and let time pass while the block runs; then stop with grace.

    ``runners`` are those of whole agents by name, or of single threads as well.

    Yields:
        The gateway that agents of this process are connected to.
    """
    gateway = AgentService(store, policy, tenant=tenant, triage=triage)
    known = runners if isinstance(runners, Runners) else Runners(runners)
    # In containers host and process id are often those of the process before: with its
    # name, this one would take that one's deliveries for its own.
    consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    retried = Retries(store)
    worker = Worker(
        store,
        gateway,
        known,
        retried,
        policy,
        consumer=consumer,
        tenant=tenant,
        slots=slots,
        on_change=on_change,
    )
    recovery = RecoveryLoop(store, known, tenant=tenant)
    # Before the first job: a store that was put back to an older copy must not run a
    # call that has run since.
    await recovery.begin()
    await reseal(store, tenant)
    orphans = OrphanFinder(store, known, consumer=consumer, tenant=tenant)
    sweeper, stop = Sweeper(store), asyncio.Event()
    tasks = [
        asyncio.create_task(worker.run(stop, grace_s=grace_s)),
        asyncio.create_task(repeat(orphans.look, stop, every_s=ORPHANS_S)),
        asyncio.create_task(repeat(recovery.tick, stop, every_s=TICK_S)),
    ]
    if store.is_split(tenant):
        freezes = SplitFreezes(store, tenant=tenant)
        tasks.append(
            asyncio.create_task(repeat(freezes.spread, stop, every_s=SPREAD_S))
        )
    writers: list[AuditWriter] = []
    # One loop for each shard: a node that is away must not stop the clock of others.
    for keys in store.every_shard():
        if store.keeps_tree:
            writers.append(AuditWriter(store, keys, tenant=tenant))
            tasks.append(
                asyncio.create_task(repeat(writers[-1].tick, stop, every_s=AUDIT_S))
            )
        work: list[tuple[Callable[[], Awaitable[object]], float]] = [
            (partial(sweeper.sweep_shard, keys), SWEEP_S),
            (partial(retried.forget_old, keys), FORGET_S),
            (partial(forget_consumers, store.conn, keys), FORGET_S),
        ]
        tasks += [
            asyncio.create_task(repeat(do, stop, every_s=every_s))
            for do, every_s in work
        ]
    try:
        yield gateway
    finally:
        stop.set()
        await asyncio.gather(*tasks)
        await end_audit(writers)
