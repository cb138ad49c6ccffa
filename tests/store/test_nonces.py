"""A request is new once, also where the store's answer about it got lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

from keyturn.gateway.store.store import Store
from tests.store.wire import Scripted, through
from tests.store_secrets import SECRETS

DIGEST = "sha256:" + "5" * 64


async def test_a_request_is_new_once(store: Store) -> None:
    keys = store.keys_of_tenant("default")

    found = await asyncio.gather(
        *(store.cards.is_first(keys, DIGEST) for _ in range(10))
    )

    assert sorted(found) == [False] * 9 + [True]


async def test_a_request_whose_record_was_not_confirmed_is_still_new(
    store: Store, valkey_url: str, tmp_path: Path
) -> None:
    """The connection breaks between the write and its answer, and is opened again."""
    lost: list[bytes] = []

    def lose_the_first(data: bytes) -> list[bytes]:
        lost.append(data)
        return [b""]

    broken, whole = through(valkey_url, lose_the_first), through(valkey_url, _as_it_is)
    async with Scripted(tmp_path, broken, whole) as wire:
        over = Store(wire.url, secrets=SECRETS, lease_ms=2000)
        keys = over.keys_of_tenant("default")

        assert await over.cards.is_first(keys, DIGEST)
        assert lost, "it was written"
        assert not await over.cards.is_first(keys, DIGEST)
        await over.close()
    assert not await store.cards.is_first(keys, DIGEST)


def _as_it_is(data: bytes) -> list[bytes]:
    return [data]
