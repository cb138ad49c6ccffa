"""A server that cannot work as a master is left, and not asked without a pause."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection.connection import Connection
from tests.conftest import eventually
from tests.store.wire import Scripted, answering

REFUSALS = {
    "read only": b"-READONLY You can't write against a read only replica.\r\n",
    "read only in a script": b"-READONLY You can't write against a read only replica. "
    b"script: 5f0, on @user_script:3.\r\n",
    "read only in a script of an old server": b"-ERR Error running script (call to f_1)"
    b": @user_script:3: @user_script: 3: -READONLY You can't write against a read only "
    b"replica. \r\n",
    "read only inside a transaction": b"*1\r\n-READONLY You can't write.\r\n",
    "cut off from its master": b"-MASTERDOWN Link with MASTER is down and "
    b"replica-serve-stale-data is set to 'no'.\r\n",
    "demoted while a command waits": b"-UNBLOCKED force unblock from blocking "
    b"operation, instance state changed (master -> replica?)\r\n",
    "loading": b"-LOADING Valkey is loading the dataset in memory\r\n",
    "without replicas": b"-NOREPLICAS Not enough good replicas to write.\r\n",
}


@pytest.mark.parametrize(
    "words", [("SET", "k", "v"), ("BLMOVE", "k", "l", "LEFT", "LEFT", 1)]
)
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_server_that_cannot_work_as_a_master_is_left(
    tmp_path: Path, refusal: str, words: tuple[str | int, ...]
) -> None:
    before = answering(lambda _: REFUSALS[refusal])
    async with Scripted(tmp_path, before, answering(lambda _: b"+OK\r\n")) as server:
        conn = Connection(server.url)

        # Some refusals are returned to the caller, who retries.
        async def is_done() -> bool:
            try:
                await conn.command(*words)
            except StoreUnavailable:
                return False
            return True

        await eventually(is_done, within_s=5)
        await conn.close()
    assert server.opened == 2


async def test_a_lasting_replica_is_asked_with_pauses(tmp_path: Path) -> None:
    async with Scripted(
        tmp_path, answering(lambda _: REFUSALS["read only in a script"])
    ) as server:
        conn = Connection(server.url)
        async with asyncio.timeout(5):
            for _ in range(2):
                with pytest.raises(
                    StoreUnavailable, match="set KEYTURN_REDIS_URL to its master"
                ) as told:
                    await conn.evalsha("return 1", ["k"], [])
                assert "Nothing was acknowledged" in str(told.value)
        await conn.close()
    assert server.opened <= 8
