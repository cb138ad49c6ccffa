"""What a failover could lose is not acknowledged, not even when it is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import cast

import pytest
from redis.exceptions import RedisError

from tests.conftest import eventually
from tests.service.harness import ANA, ServiceHarness
from tests.topologies import Cluster, Node, SentinelSet, until
from twokey.gateway.approvals.decisions import Approve, Decided
from twokey.gateway.errors import NotConfirmed
from twokey.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from twokey.gateway.store.confirming import (
    LostWriteError,
    NotConfirmedError,
    ask_confirmed,
)
from twokey.gateway.store.connection import Reply
from twokey.gateway.store.durability import ensure_durable
from twokey.gateway.store.multiplexed import Command
from twokey.gateway.store.store import Store


class Server:
    """A master whose replicas confirm as the script says, one number a ``WAIT``."""

    def __init__(self, *confirmed: int, is_kept: bool = True) -> None:
        self._confirmed = iter(confirmed)
        self._is_kept = is_kept
        self.pieces: list[list[str]] = []

    async def __call__(self, commands: Sequence[Command]) -> list[Reply]:
        self.pieces.append([str(words[0]) for words in commands])
        return [self._reply(words) for words in commands]

    def _reply(self, words: Command) -> Reply:
        match words[0]:
            case "WAIT":
                return next(self._confirmed)
            case "SET":
                return b"OK" if self._is_kept or "XX" not in words else None
            case _:
                return b"done"


async def confirmed(server: Server) -> Reply:
    return await ask_confirmed(server, ("EVALSHA",), "tk:{s0}:x", 1)


async def test_a_reply_counts_once_a_replica_has_what_was_written() -> None:
    server = Server(0, 1)

    assert await confirmed(server) == b"done"

    # The mark is written each time: without a write, WAIT waits for nothing.
    assert server.pieces == [["EVALSHA", "SET", "WAIT"], ["SET", "WAIT"]]


async def test_without_a_replica_nothing_counts() -> None:
    with pytest.raises(NotConfirmedError):
        await confirmed(Server(0, 0, 0))


async def test_a_master_without_the_mark_confirms_nothing() -> None:
    with pytest.raises(LostWriteError):
        await confirmed(Server(0, 1, is_kept=False))


async def test_a_refused_write_is_no_reply() -> None:
    async def refusing(commands: Sequence[Command]) -> list[Reply]:
        del commands
        raise RedisError("NOREPLICAS Not enough good replicas to write.")

    with pytest.raises(RedisError, match="NOREPLICAS"):
        await ask_confirmed(refusing, ("EVALSHA",), "tk:{s0}:x", 1)


@pytest.fixture
async def replicated(sentinel_set: SentinelSet) -> AsyncGenerator[Store]:
    """Give a store that waits for replicas, as it is opened by the product."""
    store = Store(sentinel_set.url, lease_ms=2000)
    await ensure_durable(store.conn)
    yield store
    await store.close()


def replicas_of(sentinel_set: SentinelSet) -> list[Node]:
    master = sentinel_set.master()
    return [node for node in sentinel_set.servers if node is not master]


@pytest.mark.slow
@pytest.mark.xdist_group("topologies")
async def test_a_decision_is_not_acknowledged_before_a_replica_has_it(
    replicated: Store, sentinel_set: SentinelSet
) -> None:
    harness = ServiceHarness(replicated)
    click, _ = await harness.refund()
    frozen = replicas_of(sentinel_set)
    for node in frozen:
        node.pause()

    with pytest.raises(NotConfirmed):
        await harness.reviews.decide(click, Approve(), ANA)
    # The master has it by now. On a new connection, too, that is no acknowledgement.
    again = Store(sentinel_set.url, lease_ms=2000)
    again.conn.confirmed_by = 1
    with pytest.raises(NotConfirmed):
        await ServiceHarness(again).reviews.decide(click, Approve(), ANA)

    frozen[0].resume()
    outcome = await ServiceHarness(again).reviews.decide(click, Approve(), ANA)
    assert outcome.kind != "unknown"
    for node in frozen:
        node.resume()
    await again.close()


@pytest.mark.slow
@pytest.mark.xdist_group("topologies")
async def test_a_turn_that_is_submitted_again_waits_for_a_replica_too(
    replicated: Store, sentinel_set: SentinelSet
) -> None:
    harness = ServiceHarness(replicated)
    turn = partial(
        harness.agents.submit,
        Turn(
            ref=TurnRef(agent="support", thread="t1", ns="", message_id="m1"),
            calls=(
                ProposedCall(
                    tool="process_refund", args={"amount": 899}, tool_call_id="c0"
                ),
            ),
        ),
    )
    frozen = replicas_of(sentinel_set)
    for node in frozen:
        node.pause()

    for _ in range(2):
        with pytest.raises(NotConfirmed):
            await turn()

    for node in frozen:
        node.resume()
    [verdict] = await turn()
    assert (await harness.item(verdict.item_id)).is_pending


@pytest.mark.slow
@pytest.mark.xdist_group("topologies")
async def test_what_was_acknowledged_survives_the_death_of_its_master(
    replicated: Store, sentinel_set: SentinelSet
) -> None:
    harness = ServiceHarness(replicated)
    clicks = [(await harness.refund(thread=f"t{n}"))[0] for n in range(20)]
    decided = [await harness.reviews.decide(one, Approve(), ANA) for one in clicks]
    assert all(isinstance(one, Decided) for one in decided)

    killed = sentinel_set.master()
    killed.kill()
    await asyncio.to_thread(
        until, lambda: sentinel_set.master() is not killed, "there is another master"
    )

    async def is_back() -> bool:
        loaded = await harness.reviews.read(clicks[0].approval)
        return loaded is not None

    await eventually(is_back)
    for click in clicks:
        item = (await harness.approval(f"{click.approval}.0")).items[0]
        assert item.decision is not None


@pytest.mark.slow
@pytest.mark.xdist_group("topologies")
async def test_each_shard_of_a_cluster_waits_for_a_replica_of_its_own(
    replicated_cluster: Cluster,
) -> None:
    store = Store(replicated_cluster.url, shards=3, lease_ms=2000)
    await ensure_durable(store.conn)
    assert store.conn.confirmed_by == 1
    harness = ServiceHarness(store)
    click, _ = await harness.refund()
    frozen = [node for node in replicated_cluster.nodes if not _leads(node)]
    for node in frozen:
        node.pause()

    with pytest.raises(NotConfirmed):
        await harness.reviews.decide(click, Approve(), ANA)

    for node in frozen:
        node.resume()
    await store.close()


def _leads(node: Node) -> bool:
    return cast("list[object]", node.ask("ROLE"))[0] == b"master"
