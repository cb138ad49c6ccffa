"""Approval repository: open, read, change and list approvals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar, cast

from twokey.gateway.approvals.events import Event
from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.store import run_list
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.attempts import ATTEMPTS, BUSY, pause_before
from twokey.gateway.store.audit_index import AuditIndex
from twokey.gateway.store.changing_many import change_many, load_many
from twokey.gateway.store.connection import Reply, number, text
from twokey.gateway.store.effect_turns import EffectTurns
from twokey.gateway.store.freeze_list import freeze_lists
from twokey.gateway.store.group_commit import Row, Rows, computed
from twokey.gateway.store.handover import Takers
from twokey.gateway.store.keys import Keys, keys_of_shard, shard_of_approval
from twokey.gateway.store.known_records import KnownRecords, parsed_size
from twokey.gateway.store.listed_members import ListedMembers
from twokey.gateway.store.precomputed import Beside, Precomputed
from twokey.gateway.store.quarantine import ForgedRecords
from twokey.gateway.store.reading_each import read_each
from twokey.gateway.store.record_seals import RecordSeals
from twokey.gateway.store.schemas import SchemaStore
from twokey.gateway.store.script import Script
from twokey.gateway.store.security_events import SecurityEvents
from twokey.gateway.store.templates import Moment
from twokey.gateway.store.turn_opener import TurnOpener
from twokey.gateway.store.turn_opening import Listed, OpenedTurn, Preconditions
from twokey.gateway.store.writing import write, write_precomputed

HEARTBEAT = Script("heartbeat")


Found = TypeVar("Found")


class ApprovalStore:
    """Approvals of all shards; ``takers`` are offered the jobs of their changes.

    Args:
        members: reads lists of the store, whose members may be corrupt.
        security: reports what was noticed.
        index: what the audit log has of approvals.
        lease_ms: how long a claim stands without a heartbeat.

    Attributes:
        schemas: what records share.
        seals: of the records.
        forged: what is done with records that do not verify.
    """

    def __init__(
        self,
        members: ListedMembers,
        security: SecurityEvents,
        index: AuditIndex | None = None,
        *,
        lease_ms: int,
    ) -> None:
        self._conn = conn = members.conn
        self._members = members
        self.lease_ms = lease_ms
        self.schemas = SchemaStore(conn)
        self.seals = RecordSeals(conn)
        self.forged = ForgedRecords(members, security)
        self._known = KnownRecords(self.schemas, self.seals, index)
        self._opener = TurnOpener(members, self._known, self.load)
        self._rows = Rows()
        self._effects = EffectTurns()
        self.takers = Takers()

    async def open_turn(
        self,
        keys: Keys,
        turn_key: str,
        approvals: Sequence[Approval],
        *,
        verdicts: bytes,
        events: Sequence[Event],
        thread: tuple[str, str],
        preconditions: Preconditions,
    ) -> OpenedTurn | None:
        """Store the approvals of one turn, once; see `TurnOpener.open`."""
        return await self._opener.open(
            keys,
            turn_key,
            approvals,
            verdicts=verdicts,
            events=events,
            thread=thread,
            preconditions=preconditions,
        )

    async def load(self, approval_id: str) -> Loaded | None:
        """Read one approval and the store's clock, as of one moment; None: unknown.

        Raises:
            CorruptRecord: when the record is corrupt.
            ForgedRecord: when it is not as it was sealed; it is quarantined by that.
        """
        shard = shard_of_approval(approval_id)
        if shard is None:
            return None
        keys = keys_of_shard(shard)
        async with self.forged.noticed(keys):
            found = await load_many(self._conn, self._known, keys, [approval_id])
        return found.get(approval_id)

    def remembered(self, approval_id: str) -> Approval | None:
        """Return an approval as it was read or written here last; None: not known."""
        return self._known.approval(approval_id)

    def with_seal(self, approval_id: str, seal: bytes) -> Loaded | None:
        """Return what `remembered` does, as of now, if it has this seal."""
        return self._known.with_seal(approval_id, seal)

    async def change(
        self,
        approval_id: str,
        compute: Callable[[Loaded], Awaitable[Found]],
        *,
        seen: Loaded | None = None,
        in_turn: bool = False,
    ) -> Found | None:
        """Compute the next version of an approval, and write it if nothing moved.

        It is the only way to move an approval: read, compute, compare and write; and
        again from the reading when something moved in between.

        Args:
            approval_id: of the approval.
            compute: given what was read, returns what to write, or an answer instead.
                It is called again when something moved.
            seen: the record when the caller has just read it; spares one reading.
            in_turn: wait for others of this process that change it, as long as the
                caller does, and write with them what waits at the same time. It is
                computed from what is remembered of the approval, and from a reading
                only where that does not do. Not where ``compute`` may take long.

        Returns:
            What was written, or the answer; None when there is no such approval.

        Raises:
            StoreUnavailable: it moved all the time; nothing was written.
            CorruptRecord: when the record is corrupt.
        """
        shard = shard_of_approval(approval_id)
        if shard is None:
            return None
        keys = keys_of_shard(shard)
        if not in_turn:
            return await self._change(keys, approval_id, compute, seen)
        # Only an optimization: what is written is compared in any case.
        row = self._rows.of(approval_id)
        async with row.turn(compute) as mine:
            if mine.written is None:
                writing = self._write_waiting(keys, approval_id, row)
                seen = await row.completed(writing)
            if mine.written is not None:
                return cast("Found", mine.written)
            return await self._change(keys, approval_id, compute, seen)

    async def write_once(self, seen: Loaded, what: Write) -> bool:
        """Write a change if nothing moved since it was computed; False: it did.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        shard = shard_of_approval(seen.approval.id)
        return shard is not None and await self._write(keys_of_shard(shard), seen, what)

    async def write_precomputed(
        self,
        keys: Keys,
        what: Precomputed,
        moment: Moment,
        beside: Beside,
        make: Callable[[int], Loaded | None],
    ) -> bytes:
        """Write a change that was precomputed if nothing moved since, see `writing`.

        Returns the seal of what stands now; empty when something moved.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        written = await write_precomputed(
            self._conn, keys, what, moment, beside, make, self.takers
        )
        if written is None:
            await self._moved(keys, what.before, beside.unfrozen)
            return b""
        seal, make_now = written
        before, size = what.before, parsed_size(what.before)
        self._known.wrote_later(before.id, before.rev + 1, seal, size, make_now)
        return seal

    async def _write(self, keys: Keys, seen: Loaded, what: Write) -> bool:
        read = self._known.with_stored(seen)
        # Somebody kept the reading of a record that is forgotten here.
        written = read and await write(self._conn, keys, read, what, self.takers)
        if written is None:
            await self._moved(keys, seen.approval, what.unfrozen)
            return False
        self._known.wrote(written)
        return True

    async def _moved(self, keys: Keys, was: Approval, unfrozen: Sequence[str]) -> None:
        """Forget what is not so any more: something moved."""
        self._known.forget(was.id)
        if unfrozen:
            await freeze_lists(self._conn).refresh(keys, was.tenant)

    async def _write_waiting(
        self, keys: Keys, approval_id: str, row: Row
    ) -> Loaded | None:
        """Write what waits in a row in one step; return the reading, if there was one.

        What is remembered may be older than the question of who waits. So only changes
        are made of it, which the store compares, and no answers.
        """
        seen = self._known.latest(approval_id) or await self.load(approval_id)
        if seen is None:
            return None
        group = await computed(seen, row.waiting)
        if group.parts and await self._write(keys, seen, group.as_one(seen)):
            group.tell()
        elif not group.parts and seen.remembered is None:
            return seen
        return None

    async def _change(
        self,
        keys: Keys,
        approval_id: str,
        compute: Callable[[Loaded], Awaitable[Found]],
        seen: Loaded | None,
    ) -> Found | None:
        confirmed: int | None = None
        lost: Write | None = None
        async with self._effects.turns() as take_turns:
            for attempt in range(ATTEMPTS):
                await pause_before(attempt)
                # What the caller has read serves once: the second try would fail, too.
                known = seen and self._known.with_stored(seen)
                loaded, seen = known or await self.load(approval_id), None
                if loaded is None:
                    return None
                # Beaten by itself: sent again, after a connection that broke.
                is_kept = lost is not None and loaded.approval == lost.approval
                found = cast("Found", lost) if is_kept else await compute(loaded)
                if isinstance(found, Write) and not is_kept:
                    resent = self._conn.resent
                    if await self._write(keys, loaded, found):
                        return found
                    lost = found if self._conn.resent != resent else None
                    if attempt == 0:
                        await take_turns(found)
                elif not self._conn.confirmed_by or confirmed == loaded.approval.rev:
                    return found
                else:
                    # An answer about what an earlier try wrote, which replicas may
                    # lack. Read again afterwards: another master may have come.
                    await self._conn.confirm(keys.head(approval_id))
                    confirmed = loaded.approval.rev
        raise StoreUnavailable(BUSY)

    async def change_many(
        self,
        keys: Keys,
        approval_ids: Iterable[str],
        compute: Callable[[Mapping[str, Loaded]], Awaitable[Found]],
    ) -> Found:
        """Change several approvals or none, see `changing_many.change_many`."""
        async with self.forged.noticed(keys):
            return await change_many(
                self._conn, self._known, keys, approval_ids, compute
            )

    async def heartbeat(self, approval_id: str, index: int, fence: int) -> bool:
        """Keep a claim; False when it is no longer this fence's."""
        shard = shard_of_approval(approval_id)
        if shard is None:
            return False
        keys = keys_of_shard(shard)
        reply = await HEARTBEAT(
            self._conn,
            head=keys.head(approval_id),
            expiry=keys.expiry,
            id=approval_id,
            index=index,
            fence=fence,
            lease_ms=self.lease_ms,
        )
        if text(reply[0]) != "kept":
            return False
        self._known.renewed(approval_id, index, number(reply[1]))
        return True

    async def load_each(
        self,
        approval_ids: Iterable[str],
        *,
        skips_newer: bool = True,
        newer: set[str] | None = None,
    ) -> list[Loaded]:
        """Read those approvals that are there, without corrupt and newer ones."""
        return await read_each(
            self.load, approval_ids, skips_newer=skips_newer, newer=newer
        )

    async def with_short_id(self, keys: Keys, short: str) -> list[str]:
        """Return the ids of a shard's approvals with this short id, of all tenants."""
        return await run_list.with_short_id(self._members, keys, short)

    async def overdue(self, keys: Keys, limit: int, *, skip: int = 0) -> list[str]:
        """Return ids of approvals in which something is overdue, earliest first.

        ``skip`` leaves out the first ones, which the caller has to leave alone.
        """
        # Of its own clock: by one that is ahead, what is not overdue yet would be
        # listed, and written again, with each look.
        now_ms = await self._conn.now_ms(keys.expiry)
        reply = await self._conn.command(
            "ZRANGEBYSCORE", keys.expiry, 0, now_ms, "LIMIT", skip, limit
        )
        return await self._members.approvals(keys, keys.expiry, reply)

    async def scheduled(self, keys: Keys) -> list[str]:
        """Return ids of a shard's approvals in which something will happen, by time."""
        reply = await self._conn.command("ZRANGE", keys.expiry, 0, -1)
        return await self._members.approvals(keys, keys.expiry, reply)

    async def forget_overdue(self, keys: Keys, approval_id: str) -> None:
        """Drop the deadline of an approval that is kept no longer."""
        await self._conn.command("ZREM", keys.expiry, keys.listed(approval_id))

    async def of_run(
        self, keys: Keys, tenant: str, run_ref: RunRef, *, newest: int = 0
    ) -> list[Listed]:
        """Return a run's approvals, oldest first, those of agents inside included.

        ``newest`` is how many at most, counted from the newest; 0 for all.
        """
        return await run_list.of_run(
            self._members, keys, tenant, run_ref, newest=newest
        )

    async def open_of_run(
        self, keys: Keys, tenant: str, run_ref: RunRef
    ) -> list[Listed]:
        """Return a run's approvals in which an item is open, oldest first."""
        return await run_list.open_of_run(self._members, keys, tenant, run_ref)

    async def answered_of_run(
        self, keys: Keys, tenant: str, run_ref: RunRef
    ) -> list[Listed]:
        """Return a run's newest approvals that people answered, oldest first."""
        return await run_list.answered_of_run(self._members, keys, tenant, run_ref)

    async def unfinished(self, keys: Keys, listed: Sequence[Listed]) -> list[str]:
        """Return the ids of those in which something is still to happen by itself."""
        if not listed:
            return []
        ids = [one.id for one in listed]
        members = map(keys.listed, ids)
        times = await self._conn.command("ZMSCORE", keys.expiry, *members)
        rows = zip(ids, cast("list[Reply]", times), strict=True)
        return [approval_id for approval_id, at in rows if at is not None]

    async def unfinished_of_run(
        self, keys: Keys, tenant: str, run_ref: RunRef
    ) -> list[str]:
        """Return the ids of a run's approvals that `unfinished` returns."""
        listed = await self.open_of_run(keys, tenant, run_ref)
        return await self.unfinished(keys, listed)

    async def has_open(self, keys: Keys, tenant: str, run_ref: RunRef) -> bool:
        """Return whether a call of a run is open, also if nothing happens by itself."""
        # Not the index of deadlines: a call in doubt is open and has no deadline.
        return bool(await self.open_of_run(keys, tenant, run_ref))
