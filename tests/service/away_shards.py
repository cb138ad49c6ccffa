"""Let shards of a store not answer, as if their master were down, or hung."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store.connection import Reply
from twokey.gateway.store.store import Store


class AwayShards:
    """Shards of which nothing answers.

    Attributes:
        shards: those.
        hangs: whether they keep who asks waiting, instead of an error.
    """

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shards: set[str] = set()
        self.hangs = False
        conn = store.conn
        evalsha, transaction = conn.evalsha, conn.transaction
        command, keep = conn.command, conn.keep

        async def script(
            source: str, keys: Sequence[str], args: Any, **options: Any
        ) -> list[Reply]:
            await self.look(keys[0])
            return await evalsha(source, keys, args, **options)

        def of_several(
            ask: Callable[..., Awaitable[list[Reply]]],
        ) -> Callable[..., Awaitable[list[Reply]]]:
            async def commands(*words: Any) -> list[Reply]:
                await self.look(str(words[0][1]) if words else "")
                return await ask(*words)

            return commands

        async def one(*words: Any) -> Reply:
            await self.look(" ".join(map(str, words[1:4])))
            return await command(*words)

        monkeypatch.setattr(conn, "evalsha", script)
        monkeypatch.setattr(conn, "transaction", of_several(transaction))
        monkeypatch.setattr(conn, "keep", of_several(keep))
        monkeypatch.setattr(conn, "command", one)

    async def look(self, key: str) -> None:
        if any(f"{{{shard}}}" in key for shard in self.shards):
            if self.hangs:
                await asyncio.sleep(3600)
            raise StoreUnavailable("away")
