"""Two tenants of a cluster: each has its Slack, bot, gateway and node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from redis.crc import key_slot

from bench.payments_stub import refunding_agent
from keyturn.bot.app import SlackBot
from keyturn.bot.config import BotConfig
from keyturn.bot.ids import Action
from keyturn.gateway.config import SlackMode
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import LangGraphLocal
from keyturn.gateway.running import running
from keyturn.gateway.service.reviews import ReviewService
from keyturn.gateway.store.store import Store
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, DAN, RULES, is_card_of
from tests.conftest import eventually
from tests.store_secrets import SECRETS
from tests.topologies import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("topologies")]

TENANTS = ("vandelay", "wayne")


@dataclass
class TenantStack:
    """The sandbox of one tenant, with its bot and its gateway."""

    store: Store
    tenant: str
    sandbox: Sandbox
    effects: Path

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run both while the block runs."""
        self.reviews = ReviewService(self.store, lambda: RULES, tenant=self.tenant)
        graph = attached(refunding_agent(self.effects), InMemorySaver())
        runners = {"support": LangGraphLocal(graph)}
        config = BotConfig(
            bot_token=self.sandbox.bot_token,
            mode=SlackMode.HTTP,
            signing_secret=self.sandbox.signing_secret,
            api_url=self.sandbox.api_url,
            port=0,
            tenant=self.tenant,
        )
        async with (
            running(self.store, lambda: RULES, runners, tenant=self.tenant),
            SlackBot(config, self.reviews) as bot,
        ):
            self.sandbox.deliver_http(bot.url)
            yield

    async def asked(self, order: str) -> JsonObject:
        """Request a refund as Dan; return the card as Ana sees it."""
        await self.reviews.ask_agent(
            "support", order, order, requester=DAN, origin=None
        )
        return await self.sandbox.person("U0ANA").message_with(
            CHANNEL, lambda message: order in str(message), 60
        )

    async def approve(self, card: JsonObject) -> None:
        """Click on a card, over HTTP and signed as Slack does."""
        ana = self.sandbox.person("U0ANA")
        await ana.click(CHANNEL, str(card["ts"]), Action.APPROVE)

    async def has_refunded(self) -> bool:
        """Return whether the tool has run."""
        return bool(self.refunded())

    def refunded(self) -> list[str]:
        """Return the orders of its executions."""
        return self.effects.read_text().split() if self.effects.exists() else []


@pytest.fixture
async def stacks(cluster: Cluster, tmp_path: Path) -> AsyncGenerator[list[TenantStack]]:
    """Run a bot and a gateway of each tenant, on separate connections."""
    async with AsyncExitStack() as opened:
        made: list[TenantStack] = []
        for tenant in TENANTS:
            store = Store(cluster.url, secrets=SECRETS)
            opened.push_async_callback(store.close)
            sandbox = await opened.enter_async_context(Sandbox())
            made.append(TenantStack(store, tenant, sandbox, tmp_path / tenant))
            await opened.enter_async_context(made[-1].running())
        yield made


async def test_each_tenant_is_asked_and_its_agent_goes_on_from_its_own_node(
    stacks: list[TenantStack], cluster: Cluster
) -> None:
    each = [one.store.keys_of_tenant(one.tenant) for one in stacks]
    slots = [key_slot(keys.outbox.encode()) for keys in each]
    assert len({cluster.master_of(slot).port for slot in slots}) == len(TENANTS)

    # Agents, threads and orders are named alike in both.
    cards = await asyncio.gather(*(one.asked("o-77") for one in stacks))
    await stacks[1].approve(cards[1])
    await eventually(stacks[1].has_refunded)

    assert stacks[1].refunded() == ["o-77"]
    assert stacks[0].refunded() == []
    [own] = [loaded async for loaded in stacks[0].reviews.queue.waiting()]
    assert is_card_of(cards[0], own.approval.id)
    await stacks[0].approve(cards[0])
    await eventually(stacks[0].has_refunded)
    assert stacks[0].refunded() == ["o-77"]
