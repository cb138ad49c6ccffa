"""Open the store: connect to a URL, or start an embedded server when needed.

A process refuses a store in an unsupported format. Each tenant has a key with its
format's number. A process reads its own format and the previous one, since new fields
of a record have defaults. The number is the position in `FORMATS`, which
`tests/store/test_store_format.py` compares with the record schemas.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.secret_file import folder_secrets
from keyturn.gateway.store.connection.durability import ensure_durable
from keyturn.gateway.store.connection.usable import shown, until_loaded, until_usable
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.sealing import ensure_secret, first_of
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Keyring

ENGINE_FOLDER = "valkey"
"""Folder of the embedded server's files, in the data folder."""

AUDIT_FOLDER = "audit"
"""Folder of the audit tree in the data folder, unless another one is configured."""

FORMATS = {"0.1.0": "0cc5175d0ed9041c9fc818c383876f2c"}
"""Versions that changed the record schemas, newest last, with a digest of the schemas.

A format's number is its position, from 1.
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
    """Open the store at a URL, or the embedded one in a data folder.

    Processes with the same data folder share one embedded server: the first starts it.

    Args:
        url: address of a Redis-protocol server; None for the embedded one.
        data_dir: the folder that contains the embedded server's ``valkey`` folder.
        secrets: sealing keys, the same for all processes of a store; if empty, those in
            the data folder are used.
        tenant: tenant of this process.
        insecure_dev: accept a server that would lose acknowledged decisions.
        waits: wait for a server that is temporarily away, see `until_usable`.
        keyring: this process's signing keys; missing ones are created.
        encrypt: encrypt texts before they are stored. Encrypted texts are readable in
            any case.

    Raises:
        StoreUnavailable: when there is no server, or not in time.
        UnsafeStore: when the server would lose acknowledged decisions.
        SettingsError: when the data has another secret or an unsupported format, or a
            signing key cannot be used.
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

        # The embedded server was just started here: waiting would not help.
        if waits and engine is None:
            await until_usable(check, url)
        else:
            await check()
        yield store


async def ensure_format(store: Store, keys: Keys) -> None:
    """Store the format's number, or compare it with the stored one.

    Raises:
        SettingsError: this version cannot read the store, or processes of the previous
            version are still running and could not read new data.
        StoreUnavailable: when the store does not answer.
    """
    conn, key = store.conn, keys.format
    versions = [*FORMATS]
    mine, version = len(versions), versions[-1]
    kept = await first_of(conn, key, f"{mine} {version}")
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
