"""Copy a tenant's keys out of the store in one step, and put a copy back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from keyturn.gateway.store.connection.connection import Command, number, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.store import Store

# Not one of `keyturn.gateway.store.scripts`: only this command needs rights to these.
_DUMP = """#!lua
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local ends, dump = redis.call('PEXPIRETIME', key), redis.call('DUMP', key)
  if dump then
    for _, value in ipairs({key, ends, dump}) do found[#found + 1] = value end
  end
end
return found
"""


class StoredKey(NamedTuple):
    """A key with its end in Unix milliseconds (0 for none) and its DUMP."""

    name: str
    ends_ms: int
    dump: bytes


async def copied(store: Store, keys: Keys) -> list[StoredKey]:
    """Return all keys of a tenant, as they were at one moment.

    Raises:
        StoreUnavailable: when the store did not answer, or has too much data for this.
    """
    every = f"{keys.format.removesuffix('format')}*"
    found = await store.conn.evalsha(_DUMP, [keys.format], [every], writes=False)
    rows = zip(found[::3], found[1::3], found[2::3], strict=True)
    return [
        StoredKey(text(name), max(0, number(ends)), cast("bytes", dump))
        for name, ends, dump in rows
    ]


async def put_back(
    store: Store, keys: Keys, rows: Sequence[StoredKey], counters: Sequence[str]
) -> None:
    """Replace all keys of a tenant by a copy, in one step.

    The copy's restore counters become 0. So the store counts as older than any
    checkpoints, and gateways put its approved calls in doubt before they run any.

    Args:
        store: the store.
        keys: keys of the tenant.
        rows: the copy.
        counters: ids of the checkpoints that the copy knows.

    Raises:
        StoreUnavailable: when the store refused the copy; nothing was changed.
    """
    # RESTORE refuses a damaged copy, or that of a newer server. In the transaction
    # below this would come too late: Redis does not roll back.
    trial = f"{keys.format}:trial"
    trials: list[Command] = [_restored(it, trial, "REPLACE") for it in rows]
    await store.conn.keep(*trials, ["DEL", trial])
    present = [one.name for one in await copied(store, keys)]
    commands: list[Command] = [["DEL", keys.format, *present]]
    commands += [_restored(it, it.name) for it in rows]
    commands += [["HSET", keys.restore_counters, one, 0] for one in counters]
    await store.conn.keep(*commands)


def _restored(row: StoredKey, name: str, *more: str) -> Command:
    return ["RESTORE", name, row.ends_ms, row.dump, "ABSTTL", *more]
