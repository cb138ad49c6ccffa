"""Who asks where the master is goes on asking."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.conftest import eventually
from twokey.gateway.store import agreement, cluster
from twokey.gateway.store.agreement import Watch, majority
from twokey.gateway.store.cluster import Cluster, Slots
from twokey.gateway.store.node import Node
from twokey.gateway.store.server_address import cluster_addresses


async def test_a_look_that_fails_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agreement, "_EVERY_S", 0)
    troubles: list[Exception] = [KeyError("a bug"), RedisConnectionError("away")]
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if troubles:
            raise troubles.pop(0)

    async def has_looked_again() -> bool:
        return looks > 3

    watch = Watch(look)
    watch.start()
    await eventually(has_looked_again)
    watch.stop()

    assert [one.message.split()[0] for one in caplog.records] == ["watch.failed"]


async def test_one_that_answers_first_with_old_news_is_outvoted() -> None:
    async def old() -> str:
        return "old master"

    async def new() -> str:
        await asyncio.sleep(0)
        return "new master"

    assert await majority([old(), new(), new()]) == "new master"


async def test_where_most_are_silent_one_answer_is_taken() -> None:
    async def silent() -> str:
        raise RedisConnectionError("away")

    async def told() -> str:
        return "master"

    assert await majority([silent(), told(), silent()]) == "master"
    with pytest.raises(RedisConnectionError, match="No server says"):
        await majority([silent(), silent()])


async def test_two_refreshes_close_each_master_that_was_replaced_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports = iter(range(7000, 7010, 2))

    async def moving(asked: object) -> Slots:
        port = next(ports)
        return (0, 1, ("127.0.0.1", port)), (2, 16383, ("127.0.0.1", port + 1))

    monkeypatch.setattr(cluster, "majority", moving)
    closing = list[Node]()

    async def close(self: Node) -> None:
        closing.append(self)
        await asyncio.sleep(0)

    opened = Cluster(cluster_addresses("redis+cluster://127.0.0.1:7000"))
    replaced = await opened.masters(asyncio.get_running_loop().time() + 5)
    monkeypatch.setattr(Node, "close", close)

    # The watch, and somebody whose command failed.
    refresh = opened._refresh  # pyright: ignore[reportPrivateUsage]
    await asyncio.gather(refresh(), refresh())

    assert len([one for one in closing if one in replaced.values()]) == len(replaced)
    monkeypatch.undo()
    await opened.close()
