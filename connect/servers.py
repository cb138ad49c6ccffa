"""Connect the Agent Servers of the settings while a gateway runs.

One process at a time connects a server, under a lease in the store. The lease only
saves requests: two processes would do no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from keyturn.connect.agent_server import AgentServer
from keyturn.connect.hand_over import Connector
from keyturn.connect.local_gate import LocalGate
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import KeyturnError, LeaseLost, ThreadUnavailable
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.runs.leases import until_lost
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

PAUSE_S = 2.0
"""Seconds between two attempts to get a lease that another process has."""


@asynccontextmanager
async def connecting_servers(
    settings: Settings, store: Store, service: AgentService
) -> AsyncGenerator[None]:
    """Connect every server of the settings.

    Raises:
        SettingsError: when the key file of a server cannot be read.
    """
    if not settings.servers:
        yield
        return
    async with AsyncExitStack() as stack:
        gate = LocalGate.of(service)
        stack.push_async_callback(gate.aclose)
        session = await stack.enter_async_context(outgoing())
        tasks = list[asyncio.Task[None]]()
        stack.push_async_callback(_stopped, tasks)
        for name, server in settings.servers.items():
            host = AgentServer(name, server, session)
            every_s = server.every.total_seconds()
            make = partial(Connector, host, gate, every_s=every_s)
            work = _alone(store, settings.tenant, name, make)
            tasks.append(asyncio.create_task(work))
        yield


async def _alone(
    store: Store, tenant: str, name: str, make: Callable[[], Connector]
) -> None:
    """Connect a server whenever this process has its lease."""
    place = (store.keys_of_tenant(tenant), "", f"server {name}")
    while True:
        try:
            async with store.threads.lease(*place) as lease:
                logger.info("server.connected server=%s", name)
                await until_lost(lease, asyncio.create_task(make().run()))
        except (LeaseLost, ThreadUnavailable):
            pass  # another process connects it
        except KeyturnError as error:
            logger.warning("server.unconnected server=%s error=%s", name, error)
        await asyncio.sleep(PAUSE_S)


async def _stopped(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        # Not `await task`: its cancellation would look like the caller's.
        await asyncio.wait(tasks)
