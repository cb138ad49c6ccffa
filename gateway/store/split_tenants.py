"""Fix whether a tenant is split by agent at its first start; refuse to change it."""

from __future__ import annotations

from twokey.gateway.errors import SettingsError
from twokey.gateway.store.connection import Connection, number, text
from twokey.gateway.store.keys import Keys

_SPLIT, _WHOLE = "agent", "tenant"


def require_shards(shards: int) -> None:
    """Refuse to split a tenant over one shard.

    Raises:
        SettingsError: says what to do.
    """
    if shards == 1:
        raise SettingsError(
            "'split_by_agent' spreads the agents of a tenant over shards, and 'shards' "
            "is 1 here; leave it out, or set up a new store with more shards."
        )


async def ensure_split(
    conn: Connection, keys: Keys, tenant: str, *, is_split: bool
) -> None:
    """Keep whether a tenant is split with its data, or compare it with what is kept.

    It says where the runs of each agent are, and who spoke in their threads. Two
    processes with two settings would not see each other's, nor all of a freeze.

    Args:
        conn: to the store.
        keys: of the tenant's own shard.
        tenant: the one that this process works for.
        is_split: whether it is split here.

    Raises:
        SettingsError: the tenant has the other setting; says what to do.
        StoreUnavailable: when the store does not answer.
    """
    key, mine = keys.split(tenant), _SPLIT if is_split else _WHOLE
    kept = text(await conn.command("GET", key))
    if not kept:
        # Versions before this setting kept none.
        is_used = is_split and await _is_used(conn, keys, tenant)
        first = _WHOLE if is_used else mine
        # Of two processes that start first at the same time one wins, and both compare.
        await conn.keep(["SET", key, first, "NX"])
        kept = text(await conn.command("GET", key))
    if kept != mine:
        was, here = ("true", "false") if kept == _SPLIT else ("false", "true")
        raise SettingsError(
            f"Tenant {tenant!r} was set up with 'split_by_agent: {was}' in this "
            f"store, and it is {here} here. It is fixed for a tenant, because it says "
            "where the runs of each agent are, and who spoke in their threads: write "
            f"'split_by_agent: {was}' (TWOKEY_SPLIT_BY_AGENT), or, once nothing of it "
            "waits, give it another name in 'tenant', or an empty store."
        )


async def _is_used(conn: Connection, keys: Keys, tenant: str) -> bool:
    """Return whether anything of a tenant is in its own shard."""
    kept = (
        keys.restore_counters(tenant),
        keys.agents(tenant),
        keys.frozen(tenant),
        keys.outdated(tenant),
        keys.queue_groups(tenant),
    )
    return bool(number(await conn.command("EXISTS", *kept)))
