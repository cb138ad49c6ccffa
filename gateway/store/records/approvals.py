"""Approval repository: open, read, change and list approvals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar, cast

from keyturn.gateway.approvals.record import Concerned
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.connection.connection import Command, Reply, text
from keyturn.gateway.store.connection.listed_members import readable
from keyturn.gateway.store.keys import Keys, keys_of_tenant, tenant_of_approval
from keyturn.gateway.store.records import codec
from keyturn.gateway.store.records.atomic_write import Loaded, Write, WriteMany
from keyturn.gateway.store.records.changing import Changes, load_many
from keyturn.gateway.store.records.codec import RecordSeals
from keyturn.gateway.store.records.known_records import KnownRecords
from keyturn.gateway.store.records.quarantine import ForgedRecords
from keyturn.gateway.store.records.turn_opener import TurnOpener
from keyturn.gateway.store.runs.run_list import Listed, RunLists
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.sealing import Sealing

logger = logging.getLogger(__name__)

AT_ONCE = 20
"""Reads sent together. One by one, a list would need a round trip for each row; a
larger batch would delay clicks."""

HEARTBEAT = Script("heartbeat")


Found = TypeVar("Found")


class ApprovalStore(RunLists):
    """Approvals of all tenants.

    Args:
        sealing: seals of the store.
        lease_ms: lifetime of a claim without a heartbeat.

    Attributes:
        seals: seals of the records.
        forged: handles records with an invalid seal.
        open_turn: stores the approvals of one turn, once; see `TurnOpener.open`.
    """

    def __init__(self, sealing: Sealing, *, lease_ms: int) -> None:
        conn = sealing.conn
        super().__init__(conn)
        self.lease_ms = lease_ms
        self.seals = RecordSeals(conn)
        self.forged = ForgedRecords(sealing)
        self._known = KnownRecords(self.seals)
        self.open_turn = TurnOpener(conn, self._known, self.load).open
        self._changes = Changes(conn, self._known)

    async def load(self, approval_id: str) -> Loaded | None:
        """Read an approval and the store's clock in one snapshot; None if missing.

        Raises:
            CorruptRecord: when the record is corrupt.
            ForgedRecord: when its seal is invalid; this quarantines the record.
        """
        tenant = tenant_of_approval(approval_id)
        if tenant is None:
            return None
        loaded, _ = await self.load_with(keys_of_tenant(tenant), approval_id)
        return loaded

    async def load_with(
        self, keys: Keys, approval_id: str, *more: Command
    ) -> tuple[Loaded | None, list[Reply]]:
        """Return the result of `load`, and replies to commands in the same snapshot.

        Args:
            keys: keys of the approval's tenant.
            approval_id: id of the approval.
            more: commands that read other data of the tenant.
        """
        async with self.forged.noticed(keys):
            found, replies = await load_many(
                self._conn, self._known, keys, [approval_id], more
            )
        return found.get(approval_id), replies

    async def concerned(
        self, keys: Keys, approval_ids: Sequence[str]
    ) -> list[Concerned | None]:
        """Return the people of each approval; None for one without a pending call."""
        if not approval_ids:
            return []
        fields = [["HGET", keys.head(one), codec.CONCERNED] for one in approval_ids]
        found = await self._conn.transaction(*fields)
        return [codec.concerned_in(one) for one in found]

    async def change(
        self, approval_id: str, compute: Callable[[Loaded], Awaitable[Found]]
    ) -> Found | None:
        """Compute the next version of an approval, and write it if nothing changed.

        All changes go through here: read, compute, compare and write. After a conflict
        the sequence starts again.

        Args:
            approval_id: id of the approval.
            compute: gets the record; returns the change to write, or a result that
                needs no write. It is called again after a conflict.

        Returns:
            The change that was written, or the result; None for a missing approval.

        Raises:
            StoreUnavailable: every attempt met a conflict; nothing was written.
            CorruptRecord: when the record is corrupt.
        """
        tenant = tenant_of_approval(approval_id)
        if tenant is None:
            return None

        async def one(read: Mapping[str, Loaded]) -> WriteMany | Found | None:
            if approval_id not in read:
                return None
            found = await compute(read[approval_id])
            return WriteMany([found]) if isinstance(found, Write) else found

        done = await self.change_many(keys_of_tenant(tenant), [approval_id], one)
        return cast("Found", done.writes[0]) if isinstance(done, WriteMany) else done

    async def change_many(
        self,
        keys: Keys,
        approval_ids: Iterable[str],
        compute: Callable[[Mapping[str, Loaded]], Awaitable[Found]],
        *,
        read: Mapping[str, Loaded] = MappingProxyType({}),
    ) -> Found:
        """Change several approvals or none, see `Changes.change`."""
        async with self.forged.noticed(keys):
            return await self._changes.change(keys, approval_ids, compute, read=read)

    async def heartbeat(self, approval_id: str, index: int, fence: int) -> bool:
        """Renew a claim; False if it no longer belongs to this fence."""
        tenant = tenant_of_approval(approval_id)
        if tenant is None:
            return False
        keys = keys_of_tenant(tenant)
        reply = await HEARTBEAT(
            self._conn,
            head=keys.head(approval_id),
            expiry=keys.expiry,
            id=approval_id,
            index=index,
            fence=fence,
            lease_ms=self.lease_ms,
        )
        return text(reply[0]) == "kept"

    async def load_each(self, approval_ids: Iterable[str]) -> list[Loaded]:
        """Return the existing approvals, without corrupt ones."""
        return await read_each(self.load, approval_ids)

    async def overdue(self, keys: Keys, limit: int) -> list[str]:
        """Return ids of approvals with an overdue deadline, earliest first."""
        # The store's clock: with a clock that is ahead, approvals that are not yet due
        # would be listed and written in every round.
        now_ms = await self._conn.now_ms(keys.expiry)
        reply = await self._conn.command(
            "ZRANGEBYSCORE", keys.expiry, 0, now_ms, "LIMIT", 0, limit
        )
        return readable(reply, keys.unlisted)

    async def scheduled(self, keys: Keys) -> list[str]:
        """Return ids of approvals with a deadline, earliest first."""
        reply = await self._conn.command("ZRANGE", keys.expiry, 0, -1)
        return readable(reply, keys.unlisted)

    async def forget_overdue(self, keys: Keys, approval_id: str) -> None:
        """Remove the deadline of an approval that is gone."""
        await self._conn.command("ZREM", keys.expiry, keys.listed(approval_id))

    async def unfinished(self, keys: Keys, listed: Sequence[Listed]) -> list[str]:
        """Return the ids of approvals with an outstanding automatic step."""
        if not listed:
            return []
        ids = [one.id for one in listed]
        members = map(keys.listed, ids)
        times = await self._conn.command("ZMSCORE", keys.expiry, *members)
        rows = zip(ids, cast("list[Reply]", times), strict=True)
        return [approval_id for approval_id, at in rows if at is not None]

    async def unfinished_of_run(self, keys: Keys, run_ref: RunRef) -> list[str]:
        """Return the result of `unfinished` for a run's approvals."""
        listed = await self.open_of_run(keys, run_ref)
        return await self.unfinished(keys, listed)

    async def has_open(self, keys: Keys, run_ref: RunRef) -> bool:
        """Return whether a run has an open call, with or without a deadline."""
        # Not from the index of deadlines: a call in doubt is open without a deadline.
        return bool(await self.open_of_run(keys, run_ref))


async def read_each(
    load: Callable[[str], Awaitable[Loaded | None]], approval_ids: Iterable[str]
) -> list[Loaded]:
    """Return the existing approvals in order, without corrupt ones.

    Args:
        load: reads one approval.
        approval_ids: ids of the approvals.
    """

    async def sound(approval_id: str) -> Loaded | None:
        try:
            return await load(approval_id)
        except CorruptRecord as error:
            log_failure(logger, error, "record.corrupt")
        return None

    wanted, found = [*approval_ids], list[Loaded]()
    for start in range(0, len(wanted), AT_ONCE):
        read = await asyncio.gather(*map(sound, wanted[start : start + AT_ONCE]))
        found += [one for one in read if one is not None]
    return found
