"""Bundle everything that is kept in one Redis-protocol server."""

from __future__ import annotations

from gateway.retention import AUDIT_KEPT
from gateway.store.approvals import ApprovalStore
from gateway.store.attention import AttentionStore
from gateway.store.cards import CardStore
from gateway.store.claims import LEASE_MS, ClaimStore
from gateway.store.connection import Connection
from gateway.store.delegations import DelegationStore
from gateway.store.freezes import FreezeStore
from gateway.store.jobs import JobQueue
from gateway.store.keys import Keys, shard_of_approval, shard_of_tenant
from gateway.store.notices import NoticeStore
from gateway.store.outbox import Outbox
from gateway.store.threads import ThreadStore
from gateway.store.timers import TimerStore
from gateway.store.windows import WindowStore


class Store:
    """One server's rooms, over one connection pool, for one event loop.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` address.
        shards: how many shards tenants are spread over; fixed for a data set.
        lease_ms: life of leases, claims and deliveries without a heartbeat.

    Attributes:
        audit_kept: how long audit entries are kept.
    """

    def __init__(self, url: str, *, shards: int = 1, lease_ms: int = LEASE_MS) -> None:
        self.conn = Connection(url)
        self.shards = shards
        self.lease_ms = lease_ms
        self.audit_kept = AUDIT_KEPT
        self.approvals = ApprovalStore(self.conn)
        self.claims = ClaimStore(self.conn, lease_ms=lease_ms)
        self.threads = ThreadStore(self.conn, lease_ms=lease_ms)
        self.cards = CardStore(self.conn)
        self.windows = WindowStore(self.conn)
        self.attention = AttentionStore(self.conn)
        self.freezes = FreezeStore(self.conn)
        self.notices = NoticeStore(self.conn)
        self.timers = TimerStore(self.conn)
        self.delegations = DelegationStore(self.conn)

    def keys_of_tenant(self, tenant: str) -> Keys:
        """Return the keys of a tenant's shard."""
        return Keys(shard_of_tenant(tenant, self.shards))

    def keys_of_approval(self, approval: str) -> Keys | None:
        """Return the keys of an approval's shard; None for a text that is no id."""
        shard = shard_of_approval(approval)
        return Keys(shard) if shard else None

    def every_shard(self) -> list[Keys]:
        """Return the keys of all shards, for readers and sweepers."""
        return [Keys(f"s{index}") for index in range(self.shards)]

    def queue(self, keys: Keys) -> JobQueue:
        """Return the resume jobs of a shard."""
        return JobQueue(self.conn, keys, lease_ms=self.lease_ms)

    def outbox(self, keys: Keys, *, reader: str) -> Outbox:
        """Return the events of a shard for a named reader."""
        return Outbox(self.conn, keys, reader=reader)

    async def close(self) -> None:
        """Close every connection."""
        await self.conn.close()
