"""One tenant of a cluster, split by agent: one bot and one gateway, all shards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from redis.crc import key_slot

from bench.payments_stub import refunding_agent
from tests.bot.bot_stack import CHANNEL, DAN, RULES
from tests.conftest import eventually
from tests.topologies import Cluster, until
from twokey.bot.app import SlackBot
from twokey.bot.config import BotConfig
from twokey.bot.ids import Action
from twokey.gateway.config import SlackMode
from twokey.gateway.errors import FreezeIncomplete
from twokey.gateway.resume.graphs import attached
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.running import running
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store
from twokey.sandbox.json_types import JsonObject
from twokey.sandbox.server import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("topologies")]

SHARDS = 8
TENANT = "vandelay"
AGENTS = ("support", "billing", "travel")
EVERYTHING = FreezeScope(kind=ScopeKind.TENANT)


class SplitStack:
    """The sandbox of the tenant, with its bot and a gateway of all its agents."""

    def __init__(self, store: Store, sandbox: Sandbox, effects: Path) -> None:
        self.store, self.sandbox, self.effects = store, sandbox, effects
        self.reviews = ReviewService(store, lambda: RULES, tenant=TENANT)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run both while the block runs."""
        saver = InMemorySaver()
        runners = {
            agent: LangGraphLocal(
                attached(refunding_agent(self.effects, agent), saver), agent=agent
            )
            for agent in AGENTS
        }
        config = BotConfig(
            bot_token=self.sandbox.bot_token,
            mode=SlackMode.HTTP,
            signing_secret=self.sandbox.signing_secret,
            api_url=self.sandbox.api_url,
            port=0,
            tenant=TENANT,
            agents=AGENTS,
        )
        async with (
            running(self.store, lambda: RULES, runners, tenant=TENANT),
            SlackBot(config, self.reviews) as bot,
        ):
            self.sandbox.deliver_http(bot.url)
            yield

    def keys_of(self, agent: str) -> Keys:
        """Return where the runs of an agent are."""
        return self.store.keys_of_agent(TENANT, agent)

    async def asked(self, agent: str, order: str) -> JsonObject:
        """Let Dan ask an agent for a refund; return the card, which Ana sees."""
        await self.reviews.ask_agent(agent, order, order, requester=DAN, origin=None)
        return await self.sandbox.person("U0ANA").message_with(
            CHANNEL, lambda message: order in str(message), 60
        )

    async def approve(self, card: JsonObject) -> None:
        """Click on a card, over HTTP and signed as Slack does."""
        ana = self.sandbox.person("U0ANA")
        await ana.click(CHANNEL, str(card["ts"]), Action.APPROVE)

    async def says(self, command: str, *words: str) -> None:
        """Let Ana write a command, and wait until she reads all of these words."""
        ana = self.sandbox.person("U0ANA")
        await ana.command("/approvals", command, CHANNEL)

        async def are_read() -> bool:
            found = json.dumps(await ana.ephemerals(CHANNEL))
            return all(word in found for word in words)

        await eventually(are_read)

    def refunded(self) -> list[str]:
        """Return the orders for which the tool ran."""
        return self.effects.read_text().split() if self.effects.exists() else []


@pytest.fixture
async def stack(cluster: Cluster, tmp_path: Path) -> AsyncGenerator[SplitStack]:
    for node in cluster.nodes:
        # A shard that is away stops no other.
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    async with AsyncExitStack() as opened:
        store = Store(cluster.url, shards=SHARDS, split=[TENANT])
        opened.push_async_callback(store.close)
        sandbox = await opened.enter_async_context(Sandbox())
        made = SplitStack(store, sandbox, tmp_path / "effects")
        await opened.enter_async_context(made.running())
        yield made


async def test_agents_of_one_tenant_are_decided_and_run_on_several_masters(
    stack: SplitStack, cluster: Cluster
) -> None:
    slots = [key_slot(stack.keys_of(one).outbox.encode()) for one in AGENTS]
    assert len({cluster.master_of(slot).port for slot in slots}) >= 2

    orders = [f"o-{agent}" for agent in AGENTS]
    cards = await asyncio.gather(*map(stack.asked, AGENTS, orders))
    waiting = [one.approval.id for one in await stack.reviews.waiting()]
    assert len(waiting) == len(AGENTS)
    await stack.says("list", *(one.rpartition("_")[2][:8] for one in waiting))
    for card in cards:
        await stack.approve(card)

    async def have_run() -> bool:
        return sorted(stack.refunded()) == sorted(orders)

    await eventually(have_run)
    assert await stack.reviews.waiting() == []


async def test_a_freeze_is_incomplete_while_a_master_is_away_and_spreads_then(
    stack: SplitStack, cluster: Cluster
) -> None:
    cards = {agent: await stack.asked(agent, f"o-{agent}") for agent in AGENTS}
    own = key_slot(stack.store.keys_of_tenant(TENANT).outbox.encode())
    gone = next(
        cluster.master_of(slot)
        for agent in AGENTS
        if cluster.master_of(slot := key_slot(stack.keys_of(agent).outbox.encode()))
        is not cluster.master_of(own)
    )
    gone.kill()

    with pytest.raises(FreezeIncomplete, match="did not answer"):
        await stack.reviews.freezes.freeze(EVERYTHING, "T0/U0ANA", "wrong refunds")

    gone.start()
    await asyncio.to_thread(until, cluster.is_whole, "the master is back")

    async def is_everywhere() -> bool:
        found = [
            await stack.store.freezes.all(keys, TENANT)
            for keys in stack.store.parts_of(TENANT)
        ]
        return all(found)

    await eventually(is_everywhere)
    # Approved and not started, whichever shard they are on.
    for card in cards.values():
        await stack.approve(card)
    assert stack.refunded() == []
    await stack.says("frozen", "wrong refunds")
    assert await stack.reviews.freezes.unfreeze(EVERYTHING, "T0/U0ANA")
