"""Facade over the Redis repositories of one server, and how a program opens it.

The store is at a URL, or an embedded server that is started when needed.
A process refuses a store in an unsupported format. Each tenant has a key with its
format's number. A process reads its own format and the previous one, since new fields
of a record have defaults. The number is the position in `FORMATS`, which
`tests/store/test_store_format.py` compares with the record schemas.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from keyturn.gateway.errors import SettingsError, StoreUnavailable
from keyturn.gateway.secret_file import folder_secrets
from keyturn.gateway.setting_forms import AUDIT_KEPT, RetrySettings
from keyturn.gateway.store.audit.log import AuditIndex, AuditLog
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.connection.durability import ensure_durable
from keyturn.gateway.store.connection.usable import shown, until_loaded, until_usable
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.events.outbox import Outbox
from keyturn.gateway.store.keys import (
    LEASE_MS,
    Keys,
    keys_of_tenant,
    tenant_of_approval,
    tenant_of_run,
)
from keyturn.gateway.store.limits.freezes import FreezeStore
from keyturn.gateway.store.limits.history import AgentLoadStore, WindowStore
from keyturn.gateway.store.records.approval_indexes import StandingStore, TimerStore
from keyturn.gateway.store.records.approvals import ApprovalStore
from keyturn.gateway.store.records.definitions import DefinitionStore
from keyturn.gateway.store.reviewers.bot_records import (
    DelegationStore,
    HomeTabStore,
    InstallationStore,
    MovedChannelStore,
    PostedMessageStore,
    SeededStore,
    SpotCheckCounter,
)
from keyturn.gateway.store.reviewers.cards import (
    CardStore,
    CollectedCardStore,
    CopyStore,
    ReadPageStore,
)
from keyturn.gateway.store.runs.auto_runs import AutoRunStore
from keyturn.gateway.store.runs.jobs import JobQueue, StalledRuns
from keyturn.gateway.store.runs.processes import ProcessStore
from keyturn.gateway.store.runs.restore_counters import RestoreCounterStore
from keyturn.gateway.store.runs.threads import InterruptStore, ThreadStore
from keyturn.gateway.store.sealing.sealing import (
    Sealing,
    SecurityEvents,
    ensure_secret,
    first_of,
)
from keyturn.gateway.trust.key_folder import Keyring


class Store:
    """All repositories of one Redis server; every event loop of a process shares it.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` address.
        secrets: keys that seal security-relevant texts, the current one first. Every
            process of a store has the same list.
        lease_ms: lifetime of leases, claims and deliveries without a heartbeat.
        engine: the embedded server behind the URL, if there is one.

    Attributes:
        audit_kept: retention of audit entries.
        audit_folder: the configured folder of the audit log, if entries leave the store
            once they are in its files; None keeps them in the store as well.
        tree_folder: folder of the audit log's files; None: no files.
        retries: how long a failed run is retried.
        keyring: this process's signing key and the public keys it trusts. With None,
            decisions are neither signed nor verified, and no receipts are issued.
        security: reports forged, damaged or unexpected data.
    """

    def __init__(
        self,
        url: str,
        *,
        secrets: Sequence[bytes],
        lease_ms: int = LEASE_MS,
        engine: EmbeddedEngine | None = None,
    ) -> None:
        self.conn = Connection(url, is_embedded=engine is not None)
        self.conn.secrets = tuple(secrets)
        self.security = SecurityEvents(self.conn)
        self.sealing = Sealing(self.conn, self.security)
        self.freezes = FreezeStore(self.sealing)
        self._engine = engine
        self.lease_ms = lease_ms
        self.audit_kept = AUDIT_KEPT
        self.audit_folder: Path | None = None
        self.tree_folder: Path | None = None
        self.retries = RetrySettings()
        self.keyring: Keyring | None = None
        self.audit_index = AuditIndex()
        self.approvals = ApprovalStore(self.sealing, lease_ms=lease_ms)
        self.threads = ThreadStore(self.sealing, lease_ms=lease_ms)
        self.cards = CardStore(self.sealing)
        self.collected_cards = CollectedCardStore(self.sealing)
        self.read_pages = ReadPageStore(self.sealing)
        self.copies = CopyStore(self.sealing)
        self.posted_messages = PostedMessageStore(self.sealing)
        self.moved_channels = MovedChannelStore(self.sealing)
        self.processes = ProcessStore(self.sealing)
        self.windows = WindowStore(self.sealing)
        self.agent_load = AgentLoadStore(self.sealing)
        self.stalled = StalledRuns(self.sealing)
        self.auto_runs = AutoRunStore(self.sealing)
        self.timers = TimerStore(self.sealing)
        self.definitions = DefinitionStore(self.sealing)
        self.delegations = DelegationStore(self.sealing)
        self.standing = StandingStore(self.sealing)
        self.home_tabs = HomeTabStore(self.sealing)
        self.interrupts = InterruptStore(self.sealing)
        self.seeded = SeededStore(self.sealing)
        self.installations = InstallationStore(self.sealing)
        self.spot_checks = SpotCheckCounter(self.sealing)
        self.restore_counters = RestoreCounterStore(self.sealing)

    @property
    def failure(self) -> StoreUnavailable | None:
        """Return why the embedded server cannot recover, or None."""
        return self._engine.failure if self._engine else None

    def keys_of_tenant(self, tenant: str) -> Keys:
        """Return the keys of a tenant."""
        return keys_of_tenant(tenant)

    def keys_of_approval(self, approval: str) -> Keys | None:
        """Return the keys of an approval's tenant; None for a malformed id."""
        tenant = tenant_of_approval(approval)
        return keys_of_tenant(tenant) if tenant else None

    def keys_of_run(self, run: str) -> Keys | None:
        """Return the keys of a stalled run's tenant; None for a malformed id."""
        tenant = tenant_of_run(run)
        return keys_of_tenant(tenant) if tenant else None

    def queue(self, keys: Keys) -> JobQueue:
        """Return the resume jobs of a tenant."""
        return JobQueue(self.conn, keys, self.sealing, lease_ms=self.lease_ms)

    def keep_audit(self, kept: timedelta, folder: Path | None) -> None:
        """Set the retention of the audit log and the folder of its segments."""
        self.audit_kept, self.audit_folder = kept, folder
        self.tree_folder = folder or self.tree_folder

    @property
    def keeps_tree(self) -> bool:
        """Return True if this process maintains a tree over the audit log."""
        return self.keyring is not None and self.tree_folder is not None

    def audit(self, keys: Keys) -> AuditLog:
        """Return the audit log of a tenant."""
        return AuditLog(self.conn, keys, self.tree_folder)

    def outbox(self, keys: Keys, *, reader: str) -> Outbox:
        """Return the events of a tenant for a named reader."""
        return Outbox(self.conn, keys, reader=reader, sealing=self.sealing)

    async def close(self) -> None:
        """Close every connection."""
        await self.conn.close()


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
