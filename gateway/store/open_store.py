"""Open the store: connect to a URL, or start an embedded server when needed.

A process refuses a store that this version cannot read. Each tenant has a key with the
number of its format. A process reads its own format and the one before it, since a new
field of a record has a default. The number follows from `FORMATS`, which
`tests/store/test_store_format.py` compares with the record schemas.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.secret_file import folder_secrets
from keyturn.gateway.store.connection import text
from keyturn.gateway.store.durability import ensure_durable
from keyturn.gateway.store.engine import EmbeddedEngine
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing import ensure_secret
from keyturn.gateway.store.store import Store
from keyturn.gateway.store.usable import shown, until_loaded, until_usable
from keyturn.gateway.trust.keyring import Keyring

ENGINE_FOLDER = "valkey"
"""Where in the data folder the embedded server keeps its files."""

AUDIT_FOLDER = "audit"
"""Where in the data folder the audit tree is, where no other folder is named."""

FORMATS = {"0.1.0": "f084feeca3f7f96a583f51b2e45704a7"}
"""Versions whose record schemas differ from those of the version before, newest last.

Each has the digest of its schemas. The number of a format is its place, from 1.
"""


@asynccontextmanager
async def open_store(
    url: str | None,
    data_dir: Path,
    *,
    secrets: Sequence[bytes] = (),
    tenant: str = "default",
    insecure_dev: bool = False,
    waits: bool = True,
    keyring: Keyring | None = None,
    encrypt: bool = False,
) -> AsyncGenerator[Store]:
    """Open the store behind a URL, or the embedded one of a data folder.

    Processes on one data folder share one embedded server: the first starts it.

    Args:
        url: address of a Redis-protocol server; None for the embedded one.
        data_dir: the folder whose ``valkey`` folder the embedded server keeps.
        secrets: what seals the texts that decide, the same for all processes of one
            store; none are those in the data folder.
        tenant: whose records this process works on.
        insecure_dev: accept a server that would lose acknowledged decisions.
        waits: wait for a server that is away for a while, see `until_usable`.
        keyring: the signing keys of this process; those that are missing are made.
        encrypt: whether this process encrypts the texts that it stores; what another
            one encrypted is read in any case.

    Raises:
        StoreUnavailable: when there is no server, or none in time.
        UnsafeStore: when it would lose acknowledged decisions.
        SettingsError: when another secret seals the data, this version cannot read its
            format, or a signing key cannot be used.
    """
    if keyring is not None:
        keyring.make_missing(datetime.now(UTC))  # noqa: TID251 - no store yet
    async with AsyncExitStack() as opened:
        engine: EmbeddedEngine | None = None
        if url is None:
            engine = EmbeddedEngine(data_dir / ENGINE_FOLDER)
            url = (await opened.enter_async_context(engine)).url
        secrets = secrets or folder_secrets(data_dir)
        store = Store(url, secrets=secrets, engine=engine)
        store.keyring, store.tree_folder = keyring, data_dir / AUDIT_FOLDER
        store.conn.encrypts = encrypt
        store.security.tenant = tenant
        opened.push_async_callback(store.close)

        async def check() -> None:
            await until_loaded(store.conn, shown(url))
            await ensure_durable(store.conn, insecure_dev=insecure_dev)
            await ensure_format(store, store.keys_of_tenant(tenant))
            await ensure_secret(store.conn, store.keys_of_tenant(tenant))

        # The embedded one has just been started: nobody else brings it back.
        if waits and engine is None:
            await until_usable(check, url)
        else:
            await check()
        yield store


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
