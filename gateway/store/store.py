"""Facade over the Redis repositories of one server."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.retention import AUDIT_KEPT
from twokey.gateway.retrying import RetrySettings
from twokey.gateway.store.agent_load import AgentLoadStore
from twokey.gateway.store.announced_interrupts import InterruptStore
from twokey.gateway.store.approvals import ApprovalStore
from twokey.gateway.store.audit_index import AuditIndex
from twokey.gateway.store.audit_log import AuditLog
from twokey.gateway.store.auto_runs import AutoRunStore
from twokey.gateway.store.card_copies import CopyStore
from twokey.gateway.store.cards import CardStore
from twokey.gateway.store.collected_cards import CollectedCardStore
from twokey.gateway.store.connection import Connection
from twokey.gateway.store.delegations import DelegationStore
from twokey.gateway.store.engine import EmbeddedEngine
from twokey.gateway.store.freeze_changes import FreezeChangeStore
from twokey.gateway.store.freeze_list import FreezeLists
from twokey.gateway.store.freeze_store import FreezeStore
from twokey.gateway.store.home_tabs import HomeTabStore
from twokey.gateway.store.jobs import JobQueue
from twokey.gateway.store.keys import (
    LEASE_MS,
    Keys,
    keys_of_shard,
    shard_of_agent,
    shard_of_approval,
    shard_of_run,
    shard_of_tenant,
)
from twokey.gateway.store.listed_members import ListedMembers
from twokey.gateway.store.moved_channels import MovedChannelStore
from twokey.gateway.store.outbox import Outbox
from twokey.gateway.store.pending import PendingIndex
from twokey.gateway.store.person_queues import PersonQueues
from twokey.gateway.store.posted_messages import PostedMessageStore
from twokey.gateway.store.processes import ProcessStore
from twokey.gateway.store.read_pages import ReadPageStore
from twokey.gateway.store.response_urls import ResponseUrlStore
from twokey.gateway.store.restore_counters import RestoreCounterStore
from twokey.gateway.store.sealing import Sealing
from twokey.gateway.store.security_events import SecurityEvents
from twokey.gateway.store.seeded import SeededStore
from twokey.gateway.store.spot_checks import SpotCheckCounter
from twokey.gateway.store.stalled import StalledRuns
from twokey.gateway.store.standing import StandingStore
from twokey.gateway.store.threads import ThreadStore
from twokey.gateway.store.timers import TimerStore
from twokey.gateway.store.windows import WindowStore
from twokey.gateway.trust.keyring import Keyring


class Store:
    """All repositories of one Redis server; every event loop of a process shares it.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` address.
        secrets: what seals the texts that decide: the one in use, then older ones. All
            processes of one store have the same.
        shards: how many shards tenants are spread over; fixed for a data set.
        lease_ms: life of leases, claims and deliveries without a heartbeat.
        engine: the embedded server behind the URL, when there is one.
        split: tenants whose agents are spread over all shards; see `keys_of_agent`.

    Attributes:
        audit_kept: how long audit entries are kept.
        audit_folder: where sealed segments of the audit log are; None: all of it stays
            in the store.
        tree_folder: where the trees of the audit log are; None: there are none.
        retries: how long a run that fails is retried.
        keyring: what this process signs with, and whose signatures it believes; None:
            decisions are neither signed nor verified, and no receipts are issued.
        security: reports what is not what we wrote.
        members: reads lists, and reports what else stands in them.
    """

    def __init__(
        self,
        url: str,
        *,
        secrets: Sequence[bytes],
        shards: int = 1,
        lease_ms: int = LEASE_MS,
        engine: EmbeddedEngine | None = None,
        split: Collection[str] = (),
    ) -> None:
        self.conn = Connection(url, is_embedded=engine is not None)
        self.conn.secrets = tuple(secrets)
        self.security = SecurityEvents(self.conn)
        self.sealing = Sealing(self.conn, self.security)
        self.members = members = ListedMembers(self.conn, self.security)
        self.freeze_lists = FreezeLists(self.conn, self.sealing)
        self._engine = engine
        self.shards = shards
        self._split = frozenset(split)
        self.lease_ms = lease_ms
        self.audit_kept = AUDIT_KEPT
        self.audit_folder: Path | None = None
        self.tree_folder: Path | None = None
        self.retries = RetrySettings()
        self.keyring: Keyring | None = None
        self.audit_index = AuditIndex()
        self.approvals = ApprovalStore(
            members, self.security, self.audit_index, lease_ms=lease_ms
        )
        self.threads = ThreadStore(self.conn, self.sealing, lease_ms=lease_ms)
        self.cards = CardStore(members, self.sealing)
        self.collected_cards = CollectedCardStore(self.conn)
        self.read_pages = ReadPageStore(self.conn, self.sealing)
        self.copies = CopyStore(self.conn, self.cards.seals)
        self.posted_messages = PostedMessageStore(members, self.sealing)
        self.moved_channels = MovedChannelStore(self.sealing)
        self.processes = ProcessStore(members)
        self.windows = WindowStore(self.conn)
        self.agent_load = AgentLoadStore(self.conn, self.sealing, self.freeze_lists)
        self.freezes = FreezeStore(self.conn, self.freeze_lists)
        self.freeze_changes = FreezeChangeStore(self.conn, self.freeze_lists)
        self.stalled = StalledRuns(members)
        self.auto_runs = AutoRunStore(self.conn, self.sealing)
        self.timers = TimerStore(members)
        self.delegations = DelegationStore(self.conn, self.sealing)
        self.pending = PendingIndex(members)
        self.person_queues = PersonQueues(members)
        self.standing = StandingStore(members)
        self.home_tabs = HomeTabStore(self.conn)
        self.response_urls = ResponseUrlStore(self.conn)
        self.interrupts = InterruptStore(members)
        self.seeded = SeededStore(self.conn)
        self.spot_checks = SpotCheckCounter(self.conn)
        self.restore_counters = RestoreCounterStore(members)

    @property
    def failure(self) -> StoreUnavailable | None:
        """Return why the embedded server is not expected to come back, or None."""
        return self._engine.failure if self._engine else None

    def keys_of_tenant(self, tenant: str) -> Keys:
        """Return the keys of a tenant's own shard, where it has what it has once.

        Where the tenant is not split, this is all that it has. Where it is, these are
        its processes, requests of Slack, Home tabs and delegations; what belongs to an
        agent's runs is in `keys_of_agent`.
        """
        return keys_of_shard(shard_of_tenant(tenant, self.shards))

    def keys_of_agent(self, tenant: str, agent: str) -> Keys:
        """Return the keys of the shard in which an agent's runs are.

        Args:
            tenant: whose agent it is.
            agent: the outermost agent of the runs: one inside its tools is with it.
        """
        if tenant in self._split:
            return keys_of_shard(shard_of_agent(tenant, agent, self.shards))
        return self.keys_of_tenant(tenant)

    def parts_of(self, tenant: str) -> tuple[Keys, ...]:
        """Return the keys of every shard that a tenant is in, its own shard first."""
        own = self.keys_of_tenant(tenant)
        if tenant not in self._split:
            return (own,)
        others = [keys for keys in self.every_shard() if keys.shard != own.shard]
        return (own, *others)

    def is_split(self, tenant: str) -> bool:
        """Return whether a tenant's agents are spread over all shards."""
        return tenant in self._split

    def keys_of_approval(self, approval: str) -> Keys | None:
        """Return the keys of an approval's shard; None for what is not its id."""
        shard = shard_of_approval(approval)
        return keys_of_shard(shard) if shard else None

    def keys_of_run(self, run: str) -> Keys | None:
        """Return the keys of the shard of a failed run; None for what is not its id."""
        shard = shard_of_run(run)
        return keys_of_shard(shard) if shard else None

    def every_shard(self) -> list[Keys]:
        """Return the keys of all shards, for readers and sweepers."""
        return [keys_of_shard(f"s{index}") for index in range(self.shards)]

    def queue(self, keys: Keys) -> JobQueue:
        """Return the resume jobs of a shard."""
        return JobQueue(self.conn, keys, self.sealing, lease_ms=self.lease_ms)

    def keep_audit(self, kept: timedelta, folder: Path | None) -> None:
        """Set for how long the audit log is kept, and where its segments are."""
        self.audit_kept, self.audit_folder = kept, folder
        self.tree_folder = folder or self.tree_folder

    @property
    def keeps_tree(self) -> bool:
        """Return whether there is a tree over the audit log, which somebody writes."""
        return self.keyring is not None and self.tree_folder is not None

    def audit(self, keys: Keys) -> AuditLog:
        """Return the audit log of a shard."""
        return AuditLog(self.conn, keys, self.audit_folder)

    def outbox(self, keys: Keys, *, reader: str) -> Outbox:
        """Return the events of a shard for a named reader."""
        return Outbox(self.conn, keys, reader=reader, members=self.members)

    async def close(self) -> None:
        """Close every connection."""
        self.audit_index.close()
        await self.conn.close()
