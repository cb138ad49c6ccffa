"""Verify the audit logs of a tenant where they are: see `verify_log`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from twokey.gateway.service.audit_writing import public_keys, required
from twokey.gateway.store.audit_tree import TreeFiles
from twokey.gateway.store.audit_verifying import Evidence, Verified, verify_log
from twokey.gateway.store.connection import fields, number, text
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.readers import EntryId, entry_id
from twokey.gateway.store.store import Store


async def verify_logs(
    store: Store,
    tenant: str,
    *,
    checkpoints: tuple[str, ...] = (),
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> list[Verified]:
    """Verify the log of each shard that a tenant is in.

    Args:
        store: with the keys and the folder of the trees.
        tenant: whose shards.
        checkpoints: that somebody kept elsewhere, as signed notes; each has to be one
            of the log that it names.
        progress: is told how many entries of how many are done.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    return [
        await _verified(store, keys, checkpoints, progress)
        for keys in store.parts_of(tenant)
    ]


async def forget_trees(store: Store, tenant: str) -> int:
    """Let gateways begin other trees, where those of a tenant's shards are lost.

    Returns:
        How many trees the store knew.
    """
    replies = [
        await store.conn.command("DEL", keys.audit_tree)
        for keys in store.parts_of(tenant)
    ]
    return sum(map(number, replies))


async def _verified(
    store: Store,
    keys: Keys,
    checkpoints: tuple[str, ...],
    progress: Callable[[int, int], None],
) -> Verified:
    keyring, folder = required(store)
    files, log = TreeFiles(folder, keys.shard), store.audit(keys)
    sealed, live = await log.live()
    # The tree grows meanwhile: what it has by now is read as well.
    while True:
        last = entry_id(live[-1].seq) if live else sealed.last
        if _newest(files) <= last:
            break
        _, more = await log.live(last)
        if not more:
            break
        live += more
    noted = fields(await store.conn.command("HGETALL", keys.audit_tree))
    now_ms = await store.conn.now_ms(keys.audit)
    name = await asyncio.to_thread(files.name)
    mine = [one for one in checkpoints if name and one.startswith(f"{name.origin}\n")]
    what = Evidence(
        files=files,
        keys=public_keys(keyring),
        segments=store.audit_folder,
        sealed=sealed,
        live=live,
        noted=(
            text(noted.get("origin")),
            number(noted.get("size")),
            text(noted.get("root")),
        ),
        oldest_ms=now_ms - int(store.audit_kept.total_seconds() * 1000),
        outside=mine[0] if mine else "",
    )
    return await asyncio.to_thread(verify_log, what, progress=progress)


def _newest(files: TreeFiles) -> EntryId:
    size = files.size
    return (
        next((one.place for one in files.records(size - 1)), (0, 0)) if size else (0, 0)
    )
