"""The watch on the master's address never stops."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from keyturn.gateway.store import servers
from keyturn.gateway.store.servers import Watch
from tests.conftest import eventually


async def test_a_look_that_fails_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(servers, "_WATCH_S", 0)
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
