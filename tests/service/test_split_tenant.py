"""A tenant that is split by agent: each agent's runs in a shard, everything as one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from tests.service.harness import ANA, BEN, DAN, RULES
from tests.service.held_calls import held_call, read
from tests.store_secrets import SECRETS
from twokey.gateway.approvals.decisions import Approve, Click, Decided, Reject
from twokey.gateway.approvals.events import EventName
from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import NotAllowed
from twokey.gateway.metrics.counts import Outcome
from twokey.gateway.metrics.fold import Selection
from twokey.gateway.protocol.records import Person, Result, RunRef
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import (
    Claimed,
    ClaimRequest,
    ProposedCall,
    Turn,
    TurnRef,
    VerdictKind,
)
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.exporting import Exporter
from twokey.gateway.service.past import PastDecisions
from twokey.gateway.service.queue import ReviewQueue
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.store import Store

SHARDS = 4
AGENTS = ("billing", "support", "travel", "hr", "it")


class Tenant:
    """Agents and reviewers of a tenant that is split."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.agents = AgentService(store, lambda: RULES)
        self.reviews = ReviewService(store, lambda: RULES)
        self._count = itertools.count()

    async def ask(
        self, agent: str, thread: str = "t1", tool: str = "process_refund"
    ) -> tuple[Click, ClaimRequest]:
        """Let an agent ask for a call; return a click on it and its claim."""
        await self.reviews.ask_agent(agent, thread, "hi", requester=DAN, origin=None)
        ref = TurnRef(agent=agent, thread=thread, message_id=f"m{next(self._count)}")
        return await held_call(self.agents, self.reviews, ref, tool)

    async def approval(self, approval_id: str) -> Approval:
        """Read an approval."""
        return await read(self.reviews, approval_id)


@pytest.fixture
async def tenant(store: Store) -> AsyncGenerator[Tenant]:
    split = Store(
        store.conn.url, secrets=SECRETS, shards=SHARDS, lease_ms=2000, split=["default"]
    )
    yield Tenant(split)
    await split.close()


def shards_of(*clicks: Click) -> set[str]:
    """Return the shards in which approvals are."""
    return {one.approval.split("_")[1] for one in clicks}


def test_the_agents_of_these_tests_are_on_several_shards(tenant: Tenant) -> None:
    found = {tenant.store.keys_of_agent("default", one).shard for one in AGENTS}

    assert len(found) >= 3
    # The parts are every shard, the tenant's own first, each once.
    parts = [keys.shard for keys in tenant.store.parts_of("default")]
    assert parts[0] == tenant.store.keys_of_tenant("default").shard
    assert sorted(parts) == ["s0", "s1", "s2", "s3"]


def test_another_tenant_of_the_store_is_not_split(tenant: Tenant) -> None:
    own = tenant.store.keys_of_tenant("acme").shard

    assert [keys.shard for keys in tenant.store.parts_of("acme")] == [own]
    assert tenant.store.keys_of_agent("acme", "billing").shard == own


async def test_calls_of_two_agents_are_decided_and_run_on_two_shards(
    tenant: Tenant,
) -> None:
    asked = await asyncio.gather(*map(tenant.ask, AGENTS))
    assert len(shards_of(*(click for click, _ in asked))) >= 3

    for (click, claim), agent in zip(asked, AGENTS, strict=True):
        keys = tenant.store.keys_of_agent("default", agent)
        assert f"_{keys.shard}_" in click.approval
        assert isinstance(await tenant.reviews.decide(click, Approve(), ANA), Decided)
        claimed = await tenant.agents.claim(claim)
        assert isinstance(claimed, Claimed)
        assert await tenant.agents.finish(claim.item_id, claimed.fence, Result(ok=True))
        ended = await tenant.approval(click.approval)
        assert ended.items[0].state is ItemState.EXECUTED
        outcomes = await tenant.agents.outcomes(claim.ref)
        assert [one.state for one in outcomes] == [ItemState.EXECUTED]


async def test_the_queue_has_what_all_agents_ask_soonest_first(tenant: Tenant) -> None:
    clicks = [
        (await tenant.ask(agent, f"t{n}"))[0] for n, agent in enumerate(AGENTS * 3)
    ]
    expected = [(await tenant.approval(one.approval)) for one in clicks]
    expected.sort(key=lambda one: (one.expires_at_ms, one.id))

    queue = ReviewQueue(tenant.store)
    everything = [one.approval.id async for one in queue.waiting()]
    first = [one.approval.id async for one in queue.waiting(4)]
    mine = [one.approval.id async for one in queue.concerning([ANA])]
    nobody = [one async for one in queue.concerning([ANA.with_(user="U0NOBODY")])]

    assert everything == [one.id for one in expected]
    assert first == everything[:4]
    assert mine == everything
    assert nobody == []


async def test_pages_of_a_persons_queue_come_one_after_the_other(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twokey.gateway.service.queue._PAGE", 2)
    for n, agent in enumerate(AGENTS * 3):
        await tenant.ask(agent, f"t{n}")

    queue = ReviewQueue(tenant.store)
    seen = [one.approval async for one in queue.concerning([ANA])]

    assert len({one.id for one in seen}) == len(AGENTS) * 3
    ends = [one.expires_at_ms for one in seen]
    assert ends == sorted(ends)


async def test_an_approval_is_found_by_its_short_id_on_any_shard(
    tenant: Tenant,
) -> None:
    clicks = [(await tenant.ask(agent))[0] for agent in AGENTS]

    for click in clicks:
        short = click.approval.rpartition("_")[2][:8]
        found = await tenant.reviews.queue.read_short(short)
        assert [one.approval.id for one in found] == [click.approval]


async def test_log_history_and_metrics_are_of_all_agents_in_order(
    tenant: Tenant,
) -> None:
    clicks = [(await tenant.ask(agent))[0] for agent in AGENTS]
    for click in clicks:
        await tenant.reviews.decide(click, Reject(), ANA)

    rows = [one async for one in Exporter(tenant.store).rows()]
    times = [int(str(row["seq"]).partition("-")[0]) for row in rows]
    past = [event.approval async for event, _ in PastDecisions(tenant.store).newest()]
    metrics = await tenant.reviews.statistics.metrics(Selection())
    live = await tenant.reviews.live_metrics.look()

    assert times == sorted(times)
    rejected = [row["approval"] for row in rows if row["name"] == "item.rejected"]
    assert rejected == [one.approval for one in clicks]
    assert past == rejected[::-1]
    assert metrics.total.calls[Outcome.REJECTED] == len(AGENTS)
    assert live.total.calls[Outcome.REJECTED] == len(AGENTS)


async def test_an_edited_message_that_names_another_agent_asks_once(
    tenant: Tenant,
) -> None:
    ask = tenant.reviews.ask_agent
    first = await ask("billing", "t", "a", requester=DAN, origin=None, message_key="m")

    again = await ask("billing", "t", "a", requester=DAN, origin=None, message_key="m")
    other = await ask("support", "t", "a", requester=DAN, origin=None, message_key="m")

    assert (first, again, other) == (True, False, False)
    assert await tenant.reviews.was_asked("m")
    assert not await tenant.reviews.was_asked("n")
    for agent, jobs in (("billing", 1), ("support", 0)):
        keys = tenant.store.keys_of_agent("default", agent)
        assert await tenant.store.queue(keys).depth() == jobs


async def test_an_agent_of_another_name_does_not_ask_inside_a_run(
    tenant: Tenant,
) -> None:
    outer = RunRef(agent="billing", thread="t1")
    ref = TurnRef(
        agent="support", thread="t2", message_id="m1", nested_in=outer, ns="tools:1"
    )
    call = ProposedCall(tool="look_up_order", args={}, tool_call_id="c1")

    with pytest.raises(NotAllowed, match="asks inside a run of 'billing'"):
        await tenant.agents.submit(Turn(ref=ref, calls=(call,)))

    same = ref.with_(agent="billing")
    (verdict,) = await tenant.agents.submit(Turn(ref=same, calls=(call,)))
    assert verdict.kind is VerdictKind.RUN


async def test_a_delegation_counts_for_the_calls_of_every_agent(
    tenant: Tenant,
) -> None:
    owner = Person(team="T0", user="U0BEN", name="Ben")
    await tenant.reviews.delegations.delegate(owner, "U0EVE", timedelta(hours=1))

    given = await tenant.reviews.delegations.given_to("U0EVE")

    assert [one.user for one in given] == ["U0BEN"]
    assert await tenant.reviews.delegations.take_back(owner)
    assert await tenant.reviews.delegations.given_to("U0EVE") == ()


async def test_runs_that_failed_are_listed_and_found_on_any_shard(
    tenant: Tenant,
) -> None:
    assert await tenant.reviews.runs.all() == []
    assert await tenant.reviews.runs.counts() == (0, 0)
    assert await tenant.reviews.runs.find("no run") is None
    for agent in AGENTS:
        keys = tenant.store.keys_of_agent("default", agent)
        await tenant.store.conn.command("XADD", keys.jobs, "*", "j", f"{{{agent}")
        queue = tenant.store.queue(keys)
        await queue.prepare()
        assert await queue.take("w", block_ms=1) is None

    letters = await tenant.reviews.runs.dead_letters()
    assert len(letters) == len(AGENTS)
    for letter in letters:
        await tenant.reviews.runs.forget(letter)
    assert await tenant.reviews.runs.dead_letters() == []


async def test_a_vote_of_two_people_is_counted_on_the_shard_of_the_call(
    tenant: Tenant,
) -> None:
    for agent in AGENTS[:2]:
        click, _ = await tenant.ask(agent, tool="wire_money")
        voted = await tenant.reviews.decide(click, Approve(), BEN)
        assert voted.kind == "voted"
        [row] = [
            one
            async for one in Exporter(tenant.store).rows()
            if one["name"] == EventName.ITEM_VOTED and one["agent"] == agent
        ]
        assert row["approval"] == click.approval
