"""Fix the number of shards of a store at its first start, and refuse another one."""

from __future__ import annotations

from twokey.gateway.errors import SettingsError
from twokey.gateway.store.connection import Connection, number
from twokey.gateway.store.keys import Keys


async def ensure_shards(conn: Connection, shards: int) -> None:
    """Keep the number of shards with the data, or compare it with what is kept.

    With another number, tenants are looked for on shards where they have nothing: their
    approvals would seem to be gone, and a freeze would not be seen.

    Raises:
        SettingsError: the store has another number; says what to do.
        StoreUnavailable: when the store does not answer.
    """
    key = Keys("s0").shards
    kept = number(await conn.command("GET", key))
    if not kept:
        # Of two processes that start first at the same time one wins, and both compare.
        await conn.keep(["SET", key, shards, "NX"])
        kept = number(await conn.command("GET", key))
    if kept != shards:
        raise SettingsError(
            f"This store was set up with 'shards: {kept}', and it is {shards} here. "
            "The number is fixed for a store, because it says where each tenant's "
            f"approvals are: write 'shards: {kept}' (TWOKEY_SHARDS), or start with an "
            "empty store once nothing waits in this one."
        )
