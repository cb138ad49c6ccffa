"""Pause, kill or cut off a gateway at any await of a step: nothing doubles or forks.

Two gateways share a store and a Postgres. Each request of one of them to either is a
point. From a chosen point on it sends nothing more, while the other takes its threads
over. Between two points it only computes, so no other process can see a difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Literal, cast

import psycopg
import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from keyturn.gateway.approvals.decisions import Approve, Reconcile
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.resume import fence_tables
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.store import Store
from tests.chaos.oracle import FORKS
from tests.conftest import eventually
from tests.levels import sample
from tests.resume import sample_tools
from tests.resume.postgres_server import fresh_database
from tests.resume.resume_stack import POLICY, Stack
from tests.store_secrets import SECRETS

LEASE_MS = 400
LAST = 170
"""There is no later point in these steps, or hardly any."""
RULES = load_policy(POLICY + "  ping: {tier: notify}\n", "policy.yml")
Kind = Literal["stop", "kill", "cut"]


@tool
def ping() -> str:
    """Ping; the policy notifies a channel."""
    sample_tools.note("ping")
    return "pinged"


_is_first: ContextVar[bool] = ContextVar("is_first", default=False)


class Halt:
    """Stop one gateway at its nth point."""

    def __init__(self, kind: Kind, at: int) -> None:
        self.kind = kind
        self.left = at
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def point(self, *, is_store: bool) -> None:
        """Pass a point, or wait there."""
        if not _is_first.get():
            return
        self.left -= 1
        if self.left > 0 or (self.kind == "cut" and not is_store):
            return
        self.reached.set()
        await self.goes_on.wait()

    def around(self, real: Any, *, is_store: bool) -> Callable[..., Awaitable[Any]]:
        """Put a point before and behind a function."""

        async def pointed(*given: Any, **named: Any) -> Any:
            await self.point(is_store=is_store)
            found = await real(*given, **named)
            await self.point(is_store=is_store)
            return found

        return pointed


@asynccontextmanager
async def gateway(url: str, database: str) -> AsyncGenerator[Stack]:
    """Open a gateway with separate connections, without a worker."""
    store = Store(url, secrets=SECRETS, lease_ms=LEASE_MS)
    async with open_checkpoints(database) as saver:
        runner = Runner(attached(sample_tools.graph(ping), saver), agent="shop")
        stack = Stack(store, runner, saver)
        stack.policy = RULES
        yield stack
    await store.close()


async def decide_all(stack: Stack, kind: Kind) -> None:
    """Approve pending calls, and reconcile calls in doubt, until the thread has ended.

    For a killed process it is known whether a call ran. A paused one may still run it,
    so nobody may choose "run again"; the same applies to a call without an approval.
    """
    for item in await stack.items():
        if item.is_pending:
            await stack.decide(item, Approve())
        elif item.state is ItemState.IN_DOUBT:
            has_run = any(line.startswith(item.tool) for line in sample_tools.ledger())
            again = kind == "kill" and not (has_run or item.is_auto_approved)
            finding = Finding.RERUN if again else Finding.EXECUTED
            await stack.decide(item, Reconcile(finding=finding))


@pytest.mark.slow
@pytest.mark.parametrize("at", sample(range(1, LAST), 3))
@pytest.mark.parametrize("kind", ["stop", "kill", "cut"])
async def test_whatever_halts_a_gateway_nothing_doubles_or_forks(
    store: Store,
    postgres: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    at: int,
) -> None:
    halt, database = Halt(kind, at), fresh_database(postgres)
    # A process that is paused inside its transaction blocks the other one for this
    # long.
    monkeypatch.setattr(fence_tables, "_PAUSE_MS", 500)
    monkeypatch.setattr("keyturn.gateway.resume.worker.GRACE_S", 0.1)
    for name in ("command", "transaction", "evalsha"):
        real = getattr(Connection, name)
        monkeypatch.setattr(Connection, name, halt.around(real, is_store=True))
    for name in ("aget_tuple", "aput", "aput_writes"):
        real = getattr(AsyncPostgresSaver, name)
        monkeypatch.setattr(AsyncPostgresSaver, name, halt.around(real, is_store=False))

    async with (
        gateway(store.conn.url, database) as one,
        gateway(store.conn.url, database) as two,
    ):

        async def work() -> None:
            _is_first.set(True)
            async with one.working():
                await asyncio.Event().wait()

        async def has_ended() -> bool:
            await decide_all(two, kind)
            return bool(await two.events(EventName.RUN_FINISHED))

        first = asyncio.create_task(work())
        await two.ask(("ping", {}), ("refund", {"order": "1", "amount": 5.0}))
        waits = [halt.reached.wait(), eventually(has_ended)]
        begun = [asyncio.ensure_future(cast("Any", one)) for one in waits]
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        for each in begun:
            each.cancel()
        async with two.working():
            await eventually(has_ended)
            if kind != "kill":
                halt.goes_on.set()
            await two.idle()
        first.cancel()
        halt.goes_on.set()
        await asyncio.gather(first, *begun, return_exceptions=True)
        told = await two.events(EventName.RUN_FINISHED)

    assert len(told) == 1
    for name in ("ping", "refund"):
        assert sum(line.startswith(name) for line in sample_tools.ledger()) <= 1
    async with await psycopg.AsyncConnection.connect(database) as connection:
        assert await (await connection.execute(FORKS)).fetchall() == []
