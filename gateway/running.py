"""Run a process's agents: workers, periodic sweep and gateway client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from keyturn.gateway.clock import now_s
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import GraphError, SettingsError
from keyturn.gateway.policy.evaluate import never_asks
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.resume.checkpoints import identity_of
from keyturn.gateway.resume.graphs import (
    IsFree,
    attached,
    check_name,
    load_graph,
    made_by,
    named,
)
from keyturn.gateway.resume.langgraph_local import Runner, Runners
from keyturn.gateway.resume.recovery import TICK_S, RecoveryLoop
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.resume.threads import ThreadChange
from keyturn.gateway.resume.transient_retry import (
    AUDIT_S,
    FORGET_S,
    MEND_S,
    SWEEP_S,
    repeat,
)
from keyturn.gateway.resume.worker import Worker, ignore
from keyturn.gateway.service.people.freezing import FreezeService
from keyturn.gateway.service.report.audit_writing import AuditWriter, end_audit
from keyturn.gateway.service.report.process_check import process_name
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.store.connection.connection import Ledger
from keyturn.gateway.store.connection.usable import until_usable
from keyturn.gateway.store.runs.processes import ProcessInfo
from keyturn.gateway.store.store import Store
from keyturn.gateway.triage.asking import Triage, require_triage

logger = logging.getLogger(__name__)


async def load_runners(
    settings: Settings, saver: BaseCheckpointSaver[Any], policy: Policy | None
) -> dict[str, Runner]:
    """Load the graph of every agent in the settings.

    Args:
        settings: name the graphs.
        saver: keeps the threads.
        policy: in force now; None if nothing runs.

    Raises:
        GraphError: one sentence about the first unusable agent.
    """
    runners: dict[str, Runner] = {}
    for name, agent in settings.agents.items():
        # An import may take half a minute, so log its begin.
        logger.info("agent.importing agent=%s graph=%s", name, agent.graph)
        own_gate = own_gate_of(name, policy) if agent.own_gate else None
        graph = await load_graph(agent.graph, settings.folder, agent.ungated, own_gate)
        check_name(graph, name)
        runners[name] = Runner(
            attached(graph, saver), agent=name, ungated=agent.ungated, hands_over=True
        )
    return runners


def check_own_gates(
    settings: Settings, runners: Mapping[str, Runner], policy: Policy
) -> None:
    """Check that loaded agents with their own gate fit another policy.

    One tool that does not fit refuses the whole policy: the graph would run its calls
    by itself, so they cannot be refused one by one.

    Raises:
        GraphError: the policy puts a tool to people, and its agent does not ask.
    """
    for name, agent in settings.agents.items():
        if agent.own_gate:
            runners[name].check_gates(agent.graph, own_gate_of(name, policy))


def own_gate_of(agent: str, policy: Policy | None) -> IsFree:
    """Return which tools of an agent with its own gate the policy puts to nobody."""
    return lambda tool: policy is None or never_asks(policy, agent=agent, tool=tool)


async def load_triage(settings: Settings) -> Triage | None:
    """Load the triage of the settings; None without one.

    The name may be an object with a coroutine ``assess``, or a class or function
    without arguments that returns one, synchronous or not.

    Raises:
        SettingsError: one sentence with the missing part or the failure.
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
    """Return a gateway's description of itself for other processes.

    Args:
        saver: keeps the threads.
        place: path or URL that the saver was opened with.
        tenant: owner of the agents.
        serves: agents of which every thread is advanced.
    """
    where, names = process_name(), tuple(serves)
    process = ProcessInfo(role="gateway", where=where, tenant=tenant, serves=names)
    return process.with_(**await identity_of(saver, place))


@asynccontextmanager
async def running(
    store: Store,
    policy: Callable[[], Policy],
    runners: Runners,
    *,
    tenant: str = "default",
    triage: Triage | None = None,
    slots: int = 8,
    on_change: Callable[[ThreadChange], None] = ignore,
) -> AsyncGenerator[AgentService]:
    """Run workers and sweeps while the block runs; then stop with grace.

    Yields:
        The gateway of this process's agents.
    """
    gateway = AgentService(store, policy, tenant=tenant, triage=triage)
    retried = Retries(store, tenant=tenant)
    worker = Worker(
        store,
        gateway,
        runners,
        retried,
        policy,
        tenant=tenant,
        slots=slots,
        on_change=on_change,
    )
    recovery = RecoveryLoop(store, runners, tenant=tenant)
    # Before the first job: a store restored from an older copy must not run a call
    # again that has already run.
    await recovery.begin()
    keys = store.keys_of_tenant(tenant)
    writers = [AuditWriter(store, keys)] if store.keeps_tree else []
    freezes = FreezeService(store, tenant=tenant)
    await until_usable(partial(_compare_freezes, writers, freezes), store.conn.url)
    sweeper, stop = Sweeper(store, tenant=tenant), asyncio.Event()
    steps: list[tuple[Callable[[], Awaitable[object]], float]] = [
        (recovery.tick, TICK_S),
        (freezes.mend, MEND_S),
        (sweeper.sweep, SWEEP_S),
        (retried.forget_old, FORGET_S),
        *((writer.tick, AUDIT_S) for writer in writers),
    ]
    if store.conn.ledger is not None:
        steps.append((partial(forget_attempts, store, store.conn.ledger), FORGET_S))
    tasks = [
        asyncio.create_task(worker.run(stop)),
        *(asyncio.create_task(repeat(step, stop, every_s=s)) for step, s in steps),
    ]
    try:
        yield gateway
    finally:
        stop.set()
        await asyncio.gather(*tasks)
        await end_audit(writers)


async def _compare_freezes(
    writers: Iterable[AuditWriter], freezes: FreezeService
) -> None:
    # Include the entries that the previous process left in the stream.
    for writer in writers:
        await writer.tick()
    await freezes.mend()


async def forget_attempts(store: Store, ledger: Ledger) -> None:
    """Delete ledger rows that no record can use any more."""
    # The earlier of two clocks: a store whose clock is far ahead, or a foreign store,
    # would make the gateway forget spent attempts.
    await ledger.forget(min(await store.conn.now_ms(""), round(now_s() * 1000)))
