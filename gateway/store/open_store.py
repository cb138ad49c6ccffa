"""Open the store: connect to a URL, or start an embedded server when needed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from keyturn.gateway.secret_file import folder_secrets
from keyturn.gateway.store.durability import ensure_durable
from keyturn.gateway.store.engine import EmbeddedEngine
from keyturn.gateway.store.loading import until_loaded
from keyturn.gateway.store.secret_check import ensure_secret
from keyturn.gateway.store.store import Store
from keyturn.gateway.store.store_format import ensure_format
from keyturn.gateway.store.usable import shown, until_usable
from keyturn.gateway.trust.keyring import Keyring

ENGINE_FOLDER = "valkey"
"""Where in the data folder the embedded server keeps its files."""

AUDIT_FOLDER = "audit"
"""Where in the data folder the audit tree is, where no other folder is named."""


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
