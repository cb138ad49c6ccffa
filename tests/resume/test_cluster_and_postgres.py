"""Two gateways on a cluster and one Postgres run each call once, across a failover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from redis.crc import key_slot

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import LangGraphLocal
from keyturn.gateway.store.durability import ensure_durable
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack
from tests.store_secrets import SECRETS
from tests.topologies import Cluster, until

pytestmark = pytest.mark.xdist_group("topologies")

THREADS = 6


@asynccontextmanager
async def gateway(cluster: Cluster, postgres: str) -> AsyncGenerator[Stack]:
    """Run a gateway with separate connections to the store and the checkpoints."""
    store = Store(cluster.url, secrets=SECRETS, lease_ms=2000)
    await ensure_durable(store.conn)
    async with open_checkpoints(postgres) as saver:
        runner = LangGraphLocal(attached(sample_tools.graph(), saver), agent="shop")
        stack = Stack(store, runner, saver)
        async with stack.working():
            yield stack
    await store.close()


async def decided(stack: Stack, thread: str) -> None:
    """Approve what a thread waits for, once the store takes it."""
    while True:
        try:
            [item] = await stack.asked(thread=thread)
            await stack.decide(item)
        except StoreUnavailable:
            await asyncio.sleep(0.1)
        else:
            return


async def test_calls_run_once_though_their_master_dies(
    replicated_cluster: Cluster, postgres: str
) -> None:
    async with AsyncExitStack() as opened:
        both = [
            await opened.enter_async_context(gateway(replicated_cluster, postgres))
            for _ in range(2)
        ]
        threads = [f"{replicated_cluster.nodes[0].port}-{n}" for n in range(THREADS)]
        for index, thread in enumerate(threads):
            refund = ("refund", {"order": thread, "amount": 1})
            await both[index % 2].ask(refund, thread=thread)
        for thread in threads:
            await both[0].asked(thread=thread)

        slot = key_slot(both[0].keys.jobs.encode())
        killed = replicated_cluster.master_of(slot)
        killed.kill()
        await asyncio.to_thread(
            until, lambda: replicated_cluster.master_of(slot) is not killed,
            "its replica takes its place",
        )  # fmt: skip
        # Writes need a replica, which the next master has only now.
        killed.start()
        for index, thread in enumerate(threads):
            await decided(both[index % 2], thread)

        for thread in threads:
            assert f"refunded {thread}" in await both[0].words(thread=thread)

    done = sorted(line.split()[1] for line in sample_tools.ledger())
    assert done == sorted(threads)
