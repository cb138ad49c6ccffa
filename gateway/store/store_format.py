"""Refuse a store that this version cannot read.

Each tenant has a key with the number of its format. A process reads its own format and
the one before it, since a new field of a record has a default. The number follows from
`FORMATS`, which `tests/store/test_store_format.py` compares with the record schemas.
"""

from __future__ import annotations

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.store.connection import text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.store import Store

FORMATS = {
    "0.1.0": "f084feeca3f7f96a583f51b2e45704a7",
}
"""Versions whose record schemas differ from those of the version before, newest last.

Each has the digest of its schemas. The number of a format is its place, from 1.
"""


async def ensure_format(store: Store, keys: Keys) -> None:
    """Keep the number of the format with the data, or compare it with what is kept.

    Raises:
        SettingsError: this version cannot read the store, or processes of the version
            before still run, which could not read what this one writes.
        StoreUnavailable: when the store does not answer.
    """
    conn, key = store.conn, keys.format
    versions = [*FORMATS]
    mine, version = len(versions), versions[-1]
    kept = text(await conn.command("GET", key))
    if not kept:
        # Of two processes that start first at the same time one wins, and both compare.
        await conn.keep(["SET", key, f"{mine} {version}", "NX"])
        kept = text(await conn.command("GET", key))
    number, _, by = kept.partition(" ")
    found = int(number) if number.isascii() and number.isdecimal() else 0
    if found == mine:
        return
    both = (
        f"This store has the format {number} of Keyturn {by}, and this process has the "
        f"format {mine} of Keyturn {version}, so nothing was started."
    )
    if found > mine:
        raise SettingsError(f"{both} Start Keyturn {by} or a later version.")
    if found < mine - 1:
        raise SettingsError(
            f"{both} It reads one format back: start Keyturn {versions[found]} once, "
            "then this version."
        )
    if alive := (await store.processes.read(keys)).alive:
        who = ", ".join(sorted(one.where for one, _ in alive.values()))
        raise SettingsError(
            f"{both} Processes of Keyturn {by} still run ({who}): stop them, then "
            "start this version."
        )
    await conn.keep(["SET", key, f"{mine} {version}"])
