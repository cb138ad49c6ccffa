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
from tests.bot.bot_stack import CHANNEL, DAN, RULES, Reviewer
from tests.bot.listeners.test_modals import block_of
from tests.conftest import eventually
from tests.store_secrets import SECRETS
from tests.topologies import Cluster, Node, until
from twokey.bot.app import SlackBot
from twokey.bot.config import BotConfig
from twokey.bot.ids import Action, Input
from twokey.gateway.config import SlackMode
from twokey.gateway.errors import FreezeIncomplete
from twokey.gateway.resume.graphs import attached
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.running import running
from twokey.gateway.service.exporting import Exporter
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

    async def home(self, *shows: str) -> None:
        """Open Ana's Home tab, and wait until it shows all of these words."""
        ana = self.sandbox.person("U0ANA")
        await ana.open_home()

        def is_shown(state: JsonObject) -> bool | None:
            found = json.dumps(state.get("home"), ensure_ascii=False)
            return all(word in found for word in shows) or None

        await ana.wait_for(is_shown, 60)

    def refunded(self) -> list[str]:
        """Return the orders for which the tool ran."""
        return self.effects.read_text().split() if self.effects.exists() else []


def gone_master(stack: SplitStack, cluster: Cluster) -> Node:
    """Return a master with runs of an agent that is not the tenant's own."""
    own = key_slot(stack.store.keys_of_tenant(TENANT).outbox.encode())
    slots = [key_slot(stack.keys_of(agent).outbox.encode()) for agent in AGENTS]
    return next(
        found
        for slot in slots
        if (found := cluster.master_of(slot)) is not cluster.master_of(own)
    )


@pytest.fixture
async def stack(cluster: Cluster, tmp_path: Path) -> AsyncGenerator[SplitStack]:
    for node in cluster.nodes:
        # A shard that is away stops no other.
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    async with AsyncExitStack() as opened:
        store = Store(cluster.url, secrets=SECRETS, shards=SHARDS, split=[TENANT])
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
    gone = gone_master(stack, cluster)
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


@pytest.mark.parametrize("way", ["killed", "hung"])
async def test_lists_show_what_is_there_while_a_master_is_away(
    stack: SplitStack, cluster: Cluster, way: str
) -> None:
    cards = {agent: await stack.asked(agent, f"o-{agent}") for agent in AGENTS}
    ids = {
        one.approval.agent: one.approval.id.rpartition("_")[2][:8]
        for one in await stack.reviews.waiting()
    }
    gone = gone_master(stack, cluster)
    away = {
        agent
        for agent in AGENTS
        if cluster.master_of(key_slot(stack.keys_of(agent).outbox.encode())) is gone
    }
    there = next(agent for agent in AGENTS if agent not in away)
    await stack.home("Waiting for you: 3")
    if way == "killed":
        gone.kill()
    else:
        gone.pause()

    left_out = f"of {SHARDS} shards of the store do not answer, so calls of"
    lacks = [left_out, *away]
    await stack.says("list", ids[there], *lacks)
    await stack.says(f"show {ids[there]}", ids[there], *lacks)
    for agent in away:
        await stack.says(f"show {ids[agent]}", "that can be looked at now", *lacks)
    await stack.says("frozen", "Something may be frozen or paused there")
    await stack.says("stats", "the numbers cannot be counted")
    await stack.home(f"Waiting for you: {3 - len(away)} or more", *lacks)
    await stack.approve(cards[there])

    async def has_run() -> bool:
        return stack.refunded() == [f"o-{there}"]

    await eventually(has_run)
    await stack.says("history", ids[there], *lacks)
    await stack.says("mine", ids[there], *lacks)
    await stack.says("freeze tool process_refund why", "shards, and", "did not answer")
    if way == "killed":
        gone.start()
    else:
        gone.resume()
    await asyncio.to_thread(until, cluster.is_whole, "the master is back")

    # The tab is brought up to date by itself.
    ana = stack.sandbox.person("U0ANA")
    await ana.wait_for(
        lambda state: 'Waiting for you: 2"' in json.dumps(state.get("home")) or None, 60
    )

    async def is_everywhere() -> bool:
        found = [
            await stack.store.freezes.all(keys, TENANT)
            for keys in stack.store.parts_of(TENANT)
        ]
        return all(found)

    await eventually(is_everywhere)


async def test_every_gesture_reaches_the_runs_of_every_agent(stack: SplitStack) -> None:
    ana = stack.sandbox.person("U0ANA")
    store = stack.store
    for agent in AGENTS:
        # Edited, and so approved.
        card = await stack.asked(agent, f"edit-{agent}")
        await stack.home("Waiting for you: 1", agent)
        [loaded] = await stack.reviews.waiting()
        short = loaded.approval.id.rpartition("_")[2][:8]
        await stack.says(f"show {short}", short)
        await Reviewer(ana).click(CHANNEL, str(card["ts"]), Action.EDIT)
        view = await ana.wait_for_view()
        await ana.submit({block_of(view, "amount"): "12"})

        async def is_edited(order: str = f"edit-{agent}") -> bool:
            return order in stack.refunded()

        await eventually(is_edited)
        # Rejected.
        card = await stack.asked(agent, f"no-{agent}")
        await ana.click(CHANNEL, str(card["ts"]), Action.REJECT)
        await ana.wait_for_view()
        await ana.submit({Input.REASON: "not today"})

        async def is_rejected() -> bool:
            return await stack.reviews.waiting() == []

        await eventually(is_rejected)
        await stack.says("history", "rejected by", f"no-{agent}")
        # Stopped, and let go on.
        scope = FreezeScope(kind=ScopeKind.AGENT, name=agent)
        await stack.says(f"freeze agent {agent} why", f"The agent {agent} is frozen")
        keys = stack.keys_of(agent)
        assert str(scope) in [one.name for one in await store.freezes.all(keys, TENANT)]
        await stack.says("frozen", f"agent {agent}")
        await stack.says(f"unfreeze agent {agent}", f"The agent {agent} may run again")
    assert not [one for one in stack.refunded() if one.startswith("no-")]
    # The queue of somebody is handed on, and counts for each agent.
    await stack.says("delegate @ben 1h", "may decide in your place")
    rows = [one async for one in Exporter(store, tenant=TENANT).rows()]
    names = [(row["name"], row.get("agent")) for row in rows]
    for agent in AGENTS:
        assert ("item.edited", agent) in names
        assert ("item.rejected", agent) in names
        assert ("freeze.set", agent) in names
