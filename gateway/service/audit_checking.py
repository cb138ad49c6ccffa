"""Verify the audit logs of a tenant where they are: see `verify_log`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from keyturn.gateway.service.audit_writing import public_keys, required
from keyturn.gateway.store.audit_log import TreeNotes, place_text
from keyturn.gateway.store.audit_tree import TreeFiles
from keyturn.gateway.store.audit_verifying import (
    Evidence,
    Problem,
    Verified,
    verify_log,
)
from keyturn.gateway.store.connection import number
from keyturn.gateway.store.readers import EntryId, entry_id
from keyturn.gateway.store.store import Store


async def verify_log_of(
    store: Store,
    tenant: str,
    *,
    checkpoints: tuple[str, ...] = (),
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Verified:
    """Verify the log of a tenant.

    Args:
        store: with the keys and the folder of the trees.
        tenant: whose log.
        checkpoints: that somebody kept elsewhere, as signed notes; each has to be one
            of the log that it names.
        progress: is told how many entries of how many are done.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    keys, (keyring, folder) = store.keys_of_tenant(tenant), required(store)
    files, log = TreeFiles(folder, keys.tenant), store.audit(keys)
    # By the files, and with what they lack of what the store noted.
    segments = await log.noted()
    sealed = segments.by_files(files, is_whole=False)
    live = [row async for row in log.live(sealed.last)]
    # The tree grows meanwhile: what it has by now is read as well.
    while True:
        last = entry_id(live[-1].seq) if live else sealed.last
        if _newest(files) <= last:
            break
        more = [row async for row in log.live(last)]
        if not more:
            break
        live += more
    noted = await TreeNotes(store.conn, keys).read()
    now_ms = await store.conn.now_ms(keys.audit)
    name = await asyncio.to_thread(files.name)
    mine = [one for one in checkpoints if name and one.startswith(f"{name.origin}\n")]
    what = Evidence(
        files=files,
        keys=public_keys(keyring),
        sealed=sealed,
        live=live,
        noted=noted[:3],
        oldest_ms=now_ms - int(store.audit_kept.total_seconds() * 1000),
        outside=mine[0] if mine else "",
    )
    found = await asyncio.to_thread(verify_log, what, progress=progress)
    for end, at in ((noted.size, noted.last), (segments.end, segments.last)):
        own = place_text(files.place(end - 1)) if 0 < end <= files.size else ""
        if end <= files.size and at != own:
            text = f"the store has {at!r} as the end of {end} entries, which it is not"
            found.problems.append(Problem(max(0, end - 1), text))
    return found


async def forget_tree(store: Store, tenant: str) -> bool:
    """Let gateways begin another tree, where that of a tenant is lost.

    Returns:
        Whether the store knew a tree.
    """
    keys = store.keys_of_tenant(tenant)
    return bool(number(await store.conn.command("DEL", keys.audit_tree)))


def _newest(files: TreeFiles) -> EntryId:
    size = files.size
    return (
        next((one.place for one in files.records(size - 1)), (0, 0)) if size else (0, 0)
    )
