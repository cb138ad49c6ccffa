"""Serve the HTTP API to a test, also with calls in every state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator

import httpx
import pytest

from keyturn.gateway.api.decide import Decisions
from keyturn.gateway.api.person_tokens import PersonTokens
from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.protocol.wire import Claimed
from keyturn.gateway.remote.program import RemoteThreads
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Keyring
from tests.api.api_stack import ApiStack, serving
from tests.api.issuer import SETTINGS, Issuer
from tests.service.harness import ServiceHarness, claim_of
from tests.store_secrets import SECRETS


@pytest.fixture
async def stack(store: Store) -> AsyncGenerator[ApiStack]:
    """Serve the services of a test."""
    async with serving(ServiceHarness(store)) as found:
        yield found


@pytest.fixture
async def gateway(stack: ApiStack) -> AsyncGenerator[HttpGateway]:
    """Submit as an agent with a separate key."""
    async with stack.gateway() as found:
        yield found


@pytest.fixture
async def client(stack: ApiStack) -> AsyncGenerator[httpx.AsyncClient]:
    """Send requests with a separate key."""
    async with stack.client() as found:
        yield found


@pytest.fixture
def threads(gateway: HttpGateway) -> RemoteThreads:
    """Ask as a program that runs threads."""
    return RemoteThreads(gateway)


@pytest.fixture(scope="module")
def apart(valkey_url: str, keyring: Keyring) -> Generator[ApiStack]:
    """Serve in a separate thread: the client here is synchronous."""
    ready, ended = threading.Event(), threading.Event()
    found: list[ApiStack] = []

    async def serve() -> None:
        store = Store(valkey_url, secrets=SECRETS, lease_ms=2000)
        store.keyring = keyring
        await store.conn.command("FLUSHALL")
        harness = ServiceHarness(store)
        async with serving(harness) as stack:
            stack.api.limits = RateLimits(10**9)
            stack.api.decisions = Decisions(
                PersonTokens(
                    SETTINGS, now_s=store.conn.clock.now_s, fetch=Issuer().fetch
                ),
                harness.reviews,
            )
            await _in_every_state(stack)
            found.append(stack)
            ready.set()
            await asyncio.to_thread(ended.wait)
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    yield found[0]
    ended.set()
    thread.join()


async def _in_every_state(stack: ApiStack) -> None:
    """Open calls and bring each of them to another state; note their names."""
    harness = stack.harness
    for stage in range(6):
        ref, (verdict,) = await harness.submit(
            ("process_refund", {"amount": 5}), thread=f"t{stage}"
        )
        stack.names.setdefault("item_id", []).append(verdict.item_id)
        stack.names.setdefault("action_hash", []).append(verdict.action_hash)
        stack.names.setdefault("thread", []).append(ref.thread)
        stack.names.setdefault("message_id", []).append(ref.message_id)
        if stage == 1:
            await harness.decide(verdict, Reject())
        if stage > 1:
            await harness.decide(verdict, Approve())
        if stage > 2:
            claimed = await harness.agents.claim(claim_of(ref, verdict))
            assert isinstance(claimed, Claimed)
            if stage == 5:
                done = Result(ok=True, summary="paid")
                await harness.agents.finish(verdict.item_id, claimed.fence, done)
    stack.names["id"] = [one.partition(".")[0] for one in stack.names["item_id"]]
    stack.names["agent"] = ["support"]
    stack.names["tool"] = ["process_refund"]
