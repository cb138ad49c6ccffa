"""Use the same approvals from many processes at once, and record the operations."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection.durability import ensure_durable
from keyturn.gateway.store.store import Store
from tests.linearizability.client import PEOPLE, Client, Seen
from tests.linearizability.history import Recorder
from tests.store_secrets import SECRETS

LEASE_MS = 2000
USERS = 3
"""People and programs of one process that use one approval."""
STEPS = 7
"""Operations of each of them, about."""
_AGAIN_S = 0.1
_PER_MOMENT = 12
"""Approvals that a process has in use at a moment."""


def serve(url: str, name: str, folder: str, seed: int, connection: Connection) -> None:
    """Use the approvals that are named, until the end.

    Each text names approvals, with a space between two; an empty one is the end.
    """
    asyncio.run(_serve(url, name, Path(folder), seed, connection))


async def _serve(
    url: str, name: str, folder: Path, seed: int, connection: Connection
) -> None:
    store = Store(url, secrets=SECRETS, lease_ms=LEASE_MS)
    recorder = Recorder(folder / f"{name}-{os.getpid()}.jsonl")
    dice = random.Random(f"{name} {seed}")  # noqa: S311 - no secret
    # As every program does at its start: it learns whether replicas have to confirm.
    while True:
        try:
            await ensure_durable(store.conn)
            break
        except StoreUnavailable:
            await asyncio.sleep(_AGAIN_S)
    connection.send("ready")
    while keys := await asyncio.to_thread(connection.recv):
        waiting = iter(keys.split())

        async def use_them() -> None:
            for key in waiting:  # noqa: B023 - used up before the next ones come
                users = (
                    Client(store, recorder, f"{name}.{key}.{at}") for at in range(USERS)
                )
                await asyncio.gather(*(use(one, key, dice) for one in users))

        await asyncio.gather(*(use_them() for _ in range(_PER_MOMENT)))
        connection.send("done")
    await store.close()
    recorder.close()


@dataclass
class _Use:
    """One client at one approval, and its last reading."""

    client: Client
    key: str
    item: str
    seen: Seen
    dice: random.Random


async def use(client: Client, key: str, dice: random.Random) -> None:
    """Use one approval for a while."""
    item = await client.submit(key)
    seen = await client.read(key, item) if item else None
    if item is None or seen is None:
        return
    used = _Use(client, key, item, seen, dice)
    for _ in range(STEPS - 2):
        [act] = dice.choices(_ACTS, _WEIGHTS)
        used.seen = await act(used) or used.seen


async def _read(used: _Use) -> Seen | None:
    return await used.client.read(used.key, used.item)


async def _decide(used: _Use) -> None:
    dice = used.dice
    [word] = dice.choices(("approve", "edit", "reject", "respond"), (12, 3, 1, 1))
    # Half of the time about the drawn version, otherwise about a reading.
    if dice.randrange(2):
        await used.client.look(used.item)
    action = dice.randrange(1_000_000, 9_000_000) if word == "edit" else 0
    by = dice.choice(PEOPLE)
    await used.client.decide(used.key, used.seen, word, action, by=by)


async def _claim(used: _Use) -> None:
    claimed = await used.client.claim(used.key, used.item)
    if claimed is None:
        return
    owner, fence = claimed
    [end] = used.dice.choices(("finish", "release", "fall silent"), (6, 2, 1))
    if end == "finish" and used.key[1] == "h":
        is_taken = bool(used.dice.randrange(2))
        await used.client.hand_over(used.key, used.item, fence, is_taken=is_taken)
    elif end == "finish":
        await used.client.finish(used.key, used.item, owner, fence)
    elif end == "release":
        await used.client.release(used.key, used.item, fence)


async def _withdraw(used: _Use) -> None:
    await used.client.withdraw(used.key, used.item)


async def _submit(used: _Use) -> None:
    await used.client.submit(used.key)


_ACTS: tuple[Callable[[_Use], Awaitable[Seen | None]], ...] = (
    _read, _decide, _claim, _withdraw, _submit,
)  # fmt: skip
_WEIGHTS = (4, 6, 6, 0.3, 0.5)
