"""Facade over the Redis repositories of one server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.setting_forms import AUDIT_KEPT, RetrySettings
from keyturn.gateway.store.audit.index import AuditIndex
from keyturn.gateway.store.audit.log import AuditLog
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.events.outbox import Outbox
from keyturn.gateway.store.keys import (
    LEASE_MS,
    Keys,
    keys_of_tenant,
    tenant_of_approval,
    tenant_of_run,
)
from keyturn.gateway.store.limits.agent_load import AgentLoadStore
from keyturn.gateway.store.limits.freezes import FreezeStore
from keyturn.gateway.store.limits.windows import WindowStore
from keyturn.gateway.store.records.approval_indexes import StandingStore, TimerStore
from keyturn.gateway.store.records.approvals import ApprovalStore
from keyturn.gateway.store.records.definitions import DefinitionStore
from keyturn.gateway.store.reviewers.cards import (
    CardStore,
    CollectedCardStore,
    CopyStore,
    ReadPageStore,
)
from keyturn.gateway.store.reviewers.delegations import DelegationStore
from keyturn.gateway.store.reviewers.home_tabs import HomeTabStore
from keyturn.gateway.store.reviewers.installations import InstallationStore
from keyturn.gateway.store.reviewers.posted_messages import (
    MovedChannelStore,
    PostedMessageStore,
)
from keyturn.gateway.store.reviewers.seeded import SeededStore, SpotCheckCounter
from keyturn.gateway.store.runs.auto_runs import AutoRunStore
from keyturn.gateway.store.runs.jobs import JobQueue
from keyturn.gateway.store.runs.processes import ProcessStore
from keyturn.gateway.store.runs.restore_counters import RestoreCounterStore
from keyturn.gateway.store.runs.stalled import StalledRuns
from keyturn.gateway.store.runs.threads import InterruptStore, ThreadStore
from keyturn.gateway.store.sealing.sealing import Sealing
from keyturn.gateway.store.sealing.security_events import SecurityEvents
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
