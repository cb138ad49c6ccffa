"""Refuse a process whose secret is not the one that a store is sealed with."""

from __future__ import annotations

from keyturn.gateway.approvals.security import SecurityEvent, SecurityKind
from keyturn.gateway.errors import SettingsError, StoreUnavailable
from keyturn.gateway.store.connection import Connection, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.security_events import SecurityEvents
from keyturn.gateway.trust.derived_keys import Purpose, key_id_of

SEALED_OTHERWISE = (
    "the store is marked as sealed with a secret that this process does not accept. If "
    "KEYTURN_SECRET was replaced, restart it with the new one; if not, see who else "
    "writes to the store."
)


async def ensure_secret(conn: Connection, keys: Keys) -> None:
    """Keep with a tenant's data which secret seals it, or compare it with what is kept.

    A process with another secret would take every record for a forgery, and set it
    aside. Only the id of a derived key is kept, which says nothing about the secret:
    who changes it keeps processes from starting, and no more.

    Raises:
        SettingsError: it is another secret; says what to do.
        StoreUnavailable: when the store does not answer.
    """
    key, mine = keys.sealed_by, _mine(conn)
    kept = text(await conn.command("GET", key))
    if not kept:
        # Of two processes that start first at the same time one wins, and both compare.
        await conn.keep(["SET", key, mine[0], "NX"])
        kept = text(await conn.command("GET", key))
    if kept not in mine:
        raise SettingsError(
            f"What this store holds is sealed with another secret (its key is {kept}, "
            f"and this process has {', '.join(mine)}), so nothing of it could be "
            "verified. Give all processes of a store the same KEYTURN_SECRET, or the "
            "same 'data_dir'. If that secret is lost, see 'A lost secret' in "
            "docs/upgrade.md."
        )
    if kept != mine[0]:
        # The secret is being replaced: others have this one among those they accept.
        await conn.keep(["SET", key, mine[0]])


async def knows_secret(conn: Connection, keys: Keys) -> bool:
    """Return whether this process accepts the secret that seals a tenant's data now.

    A process that stood still, or was forgotten, while the secret was replaced does
    not, and nothing that it cannot verify is a forgery for that.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    kept = text(await conn.command("GET", keys.sealed_by))
    return not kept or kept in _mine(conn)


async def ensure_known(
    conn: Connection, security: SecurityEvents, keys: Keys, *, approval: str = ""
) -> None:
    """Take nothing for a forgery that others can verify, by a secret that came since.

    Whoever writes to the store can say so as well, hence the security event.

    Args:
        conn: to the store.
        security: takes the report.
        keys: of the tenant in which something cannot be verified.
        approval: that it is about.

    Raises:
        StoreUnavailable: this process does not know the secret; nothing is decided,
            acknowledged or set aside here.
    """
    if await knows_secret(conn, keys):
        return
    found = SecurityEvent(
        kind=SecurityKind.SECRET_UNKNOWN, tenant="", about="secret", approval=approval
    )
    await security.report(keys, found)
    raise StoreUnavailable(
        f"What the store holds cannot be verified, so nothing was decided or run: "
        f"{SEALED_OTHERWISE}"
    )


def _mine(conn: Connection) -> list[str]:
    return [key_id_of(one, Purpose.RECORDS) for one in conn.secrets]
