"""Write the audit tree of a tenant, and move signed entries out of the store.

Theory of operation. A process reads the entries of the stream after the last one of the
tree, in their order, and appends their leaves. It has the lease of the tenant's log and
a lock of the files, so only one process writes at a time. Every 100 entries or 60
seconds, and at shutdown, it syncs the tree, signs its root as a checkpoint, and syncs
the checkpoint. Only then may entries move from the store into segments. A segment is
on the disk and noted in the store before its entries leave the store. Each step of a
move can be repeated. A segment that was written but not noted is noted once it matches
the tree.

A tree has one tenant. Its entries have the order of the tenant's stream, in which the
changes of an approval were made. A tree of several tenants would need an order that
cannot be checked against the streams.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from datetime import timedelta
from pathlib import Path

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.events import BY_GATEWAY, Event, EventName
from keyturn.gateway.approvals.security import SecurityEvent, SecurityKind
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import (
    AuditUnreadable,
    SettingsError,
    StoreUnavailable,
    ThreadUnavailable,
)
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.store import audit_segments
from keyturn.gateway.store.audit_index import fact_in
from keyturn.gateway.store.audit_log import (
    AuditLog,
    SealedNote,
    TreeNote,
    TreeNotes,
    is_overdue,
    place_text,
)
from keyturn.gateway.store.audit_seals import read_seal
from keyturn.gateway.store.audit_segments import Row, Segment
from keyturn.gateway.store.audit_tree import LogName, TreeFiles, TreeRecord
from keyturn.gateway.store.connection import entries, fields, number, text
from keyturn.gateway.store.fences import Lease, holding
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.readers import EntryId, entry_id
from keyturn.gateway.store.script import Script
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.checkpoints import Checkpoint, verified_checkpoint
from keyturn.gateway.trust.key_folder import KeyFolder, Keyring, Role
from keyturn.gateway.trust.merkle_tree import TreeHead, leaf_hash

logger = logging.getLogger(__name__)

CHECKPOINT_ENTRIES = 100
CHECKPOINT_S = 60.0

SEGMENT = 10_000
"""Entries of a segment; fewer if the oldest has waited for `SEAL_AFTER`."""

SEAL_AFTER = timedelta(hours=1)

SEAL = Script("seal", is_fenced=True)

_PAGE = 200
_TRIM_S = 60.0


class _Elsewhere(AuditUnreadable):
    """The tree was begun in another folder, perhaps on another machine."""


class AuditWriter:
    """Writes the tree of one tenant while the process runs, if no other process does.

    Args:
        store: a store with a keyring that signs for the audit log, and a tree folder.
        keys: keys of the tenant.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, store: Store, keys: Keys, *, clock: Callable[[], float] = now_s
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._log = store.audit(keys)
        self._keyring, folder = required(store)
        self._files = TreeFiles(folder, keys.tenant)
        store.audit_index.folder = folder
        self._writer = secrets.token_hex(8)
        self._tree: GrowingTree | None = None
        self._notes = TreeNotes(store.conn, keys)
        self._trimmed_s = 0.0
        self._problem = ""

    async def tick(self, *, is_last: bool = False) -> None:
        """Append new entries, sign a checkpoint if due, and drop old entries.

        Args:
            is_last: sign all unsigned entries.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        try:
            if await self._has_work(is_last=is_last):
                await self._write(is_last=is_last)
            await self._drop()
        except (AuditUnreadable, OSError, SettingsError) as error:
            # Entries stay in the store until then, so nothing is lost.
            self._tree = None
            # Compared with the class, because `_Elsewhere` may become a real error with
            # the same text.
            if (problem := repr(error)) != self._problem:
                self._problem = problem
                await self._tell_problem(error)
        else:
            self._problem = ""

    async def _tell_problem(self, error: Exception) -> None:
        # Of machines without a common folder, only the one with the tree writes.
        is_elsewhere = isinstance(error, _Elsewhere)
        level = logging.WARNING if is_elsewhere else logging.ERROR
        logger.log(
            level, "audit.not_written tenant=%s why=%s", self._keys.tenant, error
        )
        if not is_elsewhere:
            await self._report_tree(SecurityKind.STALLED)

    async def _report_tree(self, kind: SecurityKind) -> None:
        event = SecurityEvent(kind=kind, tenant=self._keys.tenant, about="audit tree")
        await self._store.security.report(self._keys, event)

    async def _has_work(self, *, is_last: bool) -> bool:
        tree = self._tree
        if tree is None or tree.is_due(self._clock(), is_last=is_last):
            return True
        # Entries after the tree; the store's note of segments is not read.
        async with aclosing(self._log.live(tree.last)) as rows:
            async for _ in rows:
                return True
        return False

    async def _write(self, *, is_last: bool) -> None:
        async def write(lease: Lease) -> None:
            noted = await self._notes.read()
            # Another process must not have changed the note.
            if self._tree is None or noted != self._notes.last:
                self._tree = await self._load(noted)
            await self._tell_keys()
            await self._append(self._tree, lease)
            if self._tree.is_due(self._clock(), is_last=is_last):
                await self._sign(self._tree, lease)

        await self._alone(write)

    async def _alone(self, work: Callable[[Lease], Awaitable[None]]) -> None:
        """Do exclusive work; skip it while another process has the lease."""
        try:
            # The lease of a thread is used, with an agent name that no agent has.
            async with self._store.threads.lease(self._keys, "", "audit") as lease:
                with holding(lease), self._files.locked(self._writer) as was_last:
                    if was_last is None:
                        return
                    if not was_last:
                        self._tree = None
                    await work(lease)
        except ThreadUnavailable:
            logger.debug("audit.written_elsewhere tenant=%s", self._keys.tenant)

    async def _load(self, noted: TreeNote) -> GrowingTree:
        name = await asyncio.to_thread(self._files.name)
        if (name.origin if name else "") != noted.origin and noted.origin:
            message = (
                f"The audit tree of {self._keys.tenant} was begun in another "
                f"folder than {str(self._files.folder)!r}; bring its files back, let "
                "all gateways share one 'audit_folder', or begin another tree by "
                "'keyturn audit restart'."
            )
            # A process that signed here needs this tree or an explicit restart.
            has_tree = name is not None and self._files.notes()
            is_late = has_tree or await is_overdue(self._store.conn, self._keys)
            raise AuditUnreadable(message) if is_late else _Elsewhere(message)
        if name is None:
            name = await asyncio.to_thread(self._files.create)
        keys = public_keys(self._keyring)
        found = await asyncio.to_thread(_load_files, self._files, name, keys)
        size = noted.size
        if noted.origin and found.signed < size:
            raise AuditUnreadable(
                f"The audit tree in {str(self._files.folder)!r} has {found.signed} "
                f"entries, and had {size}: it is an older copy. Bring the newest one "
                "back; entries that it lacks may have left the store."
            )
        if noted != TreeNote() and not self._is_known(name, keys, noted):
            raise AuditUnreadable(
                f"The audit tree in {str(self._files.folder)!r} has no checkpoint with "
                f"{size} entries, the root {noted.root} and the last entry "
                f"{noted.last}, which the store knows: one of both was changed. "
                "'keyturn audit verify' says more."
            )
        self._notes.last = noted
        if found.signed:
            if not noted.origin:
                # Without the note another gateway could have begun another tree.
                await self._report_tree(SecurityKind.SEAL_WRONG)
            newest, at = found.head.root().hex(), found.signed_last
            own = TreeNote(name.origin, found.signed, newest, place_text(at))
            if noted != own:
                await self._notes.write(name.origin, found.signed, newest, at)
        await self._index_again(found.signed_last)
        return found

    def _is_known(
        self, name: LogName, keys: tuple[PublicKey, ...], noted: TreeNote
    ) -> bool:
        for note in reversed(self._files.notes()):
            found = verified_checkpoint(note, origin=name.origin, keys=keys)
            if found.size <= noted.size:
                last = place_text(self._files.place(found.size - 1))
                own = TreeNote(name.origin, found.size, found.root.hex(), last)
                return noted == own
        return False

    async def _tell_keys(self) -> None:
        """Write an entry if the valid signing keys have changed."""
        found = {
            role.value: ",".join(key.label for key in self._keyring.verifying(role))
            for role in Role
        }
        now = json.dumps(found, sort_keys=True)
        if now == self._files.noted_keys():
            return
        event = Event(
            name=EventName.KEYS_CHANGED,
            tenant=self._keys.tenant,
            actor=BY_GATEWAY,
            data={role: labels for role, labels in found.items() if labels},
        )
        await self._log.append(event)
        self._files.note_keys(now)

    async def _append(self, tree: GrowingTree, lease: Lease) -> None:
        batch: list[Row] = []
        before = tree.last
        async with aclosing(self._log.live(tree.last)) as rows:
            async for row in rows:
                batch.append(row)
                if len(batch) >= _PAGE:
                    await self._add(tree, batch, lease)
                    batch = []
        if batch:
            await self._add(tree, batch, lease)
        if before[0] and tree.last != before:
            await self._report_gap(before)

    async def _report_gap(self, before: EntryId) -> None:
        """Report that an entry after a position was deleted before it was read."""
        conn, audit = self._store.conn, self._keys.audit
        info = fields(await conn.command("XINFO", "STREAM", audit))
        deleted = text(info.get("max-deleted-entry-id")) or "0-0"
        if entry_id(deleted) > before:
            await self._report_entry(f"{deleted} deleted")

    async def _report_entry(self, name: str) -> None:
        event = SecurityEvent(
            kind=SecurityKind.SEAL_WRONG,
            # Not the tenant named in the entry: its content is forged.
            tenant=self._keys.tenant,
            about="audit entry",
            name=name,
        )
        await self._store.security.report(self._keys, event)

    async def _add(self, tree: GrowingTree, batch: list[Row], lease: Lease) -> None:
        conn, keys = self._store.conn, self._keys

        def records() -> tuple[list[TreeRecord], dict[str, int]]:
            found: list[TreeRecord] = []
            facts: dict[str, int] = {}
            for row in batch:
                state = read_seal(conn, keys, row.event, row.seal)
                leaf = leaf_hash(row._replace(state=state).leaf_text)
                found.append(TreeRecord(entry_id(row.seq), state, leaf))
                _join(facts, fact_in(row, state))
            return found, facts

        # In a thread, so that a long log does not delay interactive requests.
        found, facts = await asyncio.to_thread(records)
        lease.check()
        await self._report(found)
        await asyncio.to_thread(self._files.append, found)
        tree.add(found, self._clock())
        _join(tree.facts, facts)
        if not conn.confirmed_by:
            # With replicas an entry may still get lost, so its facts wait for the
            # checkpoint.
            self._store.audit_index.note(keys.tenant, facts)
        if tree.is_full:
            await self._sign(tree, lease)

    async def _report(self, found: list[TreeRecord]) -> None:
        """Report entries without a valid seal."""
        for one in found:
            if one.state is SealState.SEALED:
                continue
            await self._store.sealing.ensure_known(self._keys)
            await self._report_entry(f"{place_text(one.place)} {one.state}")

    async def _sign(self, tree: GrowingTree, lease: Lease) -> None:
        """Sign a checkpoint, after which its entries may leave the store."""
        # Otherwise a failover could lose signed entries and fork the log.
        await self._store.conn.confirm(self._keys.audit)
        key = self._keyring.signing(Role.AUDIT)
        checkpoint = Checkpoint(tree.name.origin, tree.head.size, tree.head.root())
        lease.check()
        index, tenant = self._store.audit_index, self._keys.tenant
        # Before the checkpoint: facts that are not on the disk would not be read again.
        await asyncio.to_thread(index.write, tenant, tree.facts)
        index.note(tenant, tree.facts)
        tree.facts = {}
        await asyncio.to_thread(self._files.write_checkpoint, checkpoint.signed(key))
        tree.is_signed()
        root, at = checkpoint.root.hex(), tree.signed_last
        # For other gateways: the folder with the log, and its size. Written after the
        # file, which is authoritative; a process may end in between.
        await self._notes.write(checkpoint.origin, checkpoint.size, root, at)
        logger.info(
            "audit.checkpoint origin=%s size=%d root=%s",
            checkpoint.origin, checkpoint.size, root,
        )  # fmt: skip

    async def _index_again(self, signed_last: EntryId) -> None:
        """Rebuild a lost index from the remaining entries."""
        conn, keys, facts = self._store.conn, self._keys, dict[str, int]()
        if await asyncio.to_thread(self._store.audit_index.exists, keys.tenant):
            return
        async with aclosing(self._log.rows()) as rows:
            async for row in rows:
                if entry_id(row.seq) > signed_last:
                    break
                state = read_seal(conn, keys, row.event, row.seal)
                _join(facts, fact_in(row, state))
        await asyncio.to_thread(self._store.audit_index.write, keys.tenant, facts)

    async def _drop(self) -> None:
        """Periodically move or drop entries that a checkpoint covers."""
        tree = self._tree
        if tree is None or self._clock() - self._trimmed_s < _TRIM_S:
            return
        self._trimmed_s = self._clock()
        if self._store.audit_folder is None:
            await self._log.trim(self._store.audit_kept, before=tree.signed_last)
            return
        mover = AuditMover(self._store, self._keys, self._files)

        async def move(_lease: Lease) -> None:
            # Loaded again if another process has written.
            tree = self._tree
            if tree is not None and await mover.move(tree.signed_last):
                await self._report_tree(SecurityKind.SEAL_WRONG)

        if await mover.is_due():
            await self._alone(move)


class GrowingTree:
    """The tree in the memory of its writer.

    Attributes:
        name: name of the log.
        head: tree head over all entries.
        last: position of the newest entry.
        signed: number of entries in the newest checkpoint.
        signed_last: position of the last of them.
        facts: facts of entries that are not in the index yet.
    """

    def __init__(
        self, name: LogName, head: TreeHead, last: EntryId, *, signed: int
    ) -> None:
        self.name = name
        self.head = head
        self.last = self.signed_last = last
        self.signed = signed
        self.facts: dict[str, int] = {}
        self._since_s = 0.0

    def add(self, records: list[TreeRecord], now: float) -> None:
        """Add records."""
        if self.head.size == self.signed:
            self._since_s = now
        for one in records:
            self.head.append(one.leaf)
        self.last = records[-1].place

    def is_signed(self) -> None:
        """Note that there is a checkpoint over all entries."""
        self.signed, self.signed_last = self.head.size, self.last

    def is_due(self, now: float, *, is_last: bool) -> bool:
        """Return whether a checkpoint is due; the first one is due at once."""
        left = self.head.size - self.signed
        is_late = not self.signed or now - self._since_s >= CHECKPOINT_S
        is_late = is_late and left > 0
        return self.is_full or is_late or (is_last and left > 0)

    @property
    def is_full(self) -> bool:
        """Return whether `CHECKPOINT_ENTRIES` or more entries wait for a checkpoint."""
        return self.head.size - self.signed >= CHECKPOINT_ENTRIES


def _load_files(
    files: TreeFiles, name: LogName, keys: tuple[PublicKey, ...]
) -> GrowingTree:
    files.mend(files.notes())
    newest, head, last = files.checked(name, keys)
    # Unsigned entries are read again from the store.
    files.cut(newest.size)
    return GrowingTree(name, head, last, signed=newest.size)


def required(store: Store) -> tuple[Keyring, Path]:
    """Return a store's keyring and tree folder.

    Raises:
        ValueError: when the store lacks either.
    """
    if store.keyring is None or store.tree_folder is None:
        raise ValueError("the store has no keys or no folder for the audit tree")
    return store.keyring, store.tree_folder


def public_keys(keyring: Keyring) -> tuple[PublicKey, ...]:
    """Return all keys that may have signed checkpoints, including retired ones."""
    own = [one.public for one in KeyFolder(keyring.folder, Role.AUDIT).listed()]
    return tuple(dict.fromkeys([*own, *keyring.known(Role.AUDIT)]))


async def end_audit(writers: Iterable[AuditWriter]) -> None:
    """Sign all unsigned entries of each log, if the store answers."""
    for writer in writers:
        with suppress(StoreUnavailable):
            await writer.tick(is_last=True)


def _join(facts: dict[str, int], others: Mapping[str, int]) -> None:
    for name, count in others.items():
        facts[name] = max(facts.get(name, 0), count)


class AuditMover:
    """Moves the log of one tenant from the store into segments.

    Args:
        store: the store with the log.
        keys: keys of the tenant.
        files: the files of its tree, in the folder of the segments.
    """

    def __init__(self, store: Store, keys: Keys, files: TreeFiles) -> None:
        self._store, self._keys, self._files = store, keys, files
        self._log: AuditLog = store.audit(keys)

    async def is_due(self) -> bool:
        """Return whether `move` has work; drop entries that are in segments."""
        noted = await self._log.noted()
        found = await asyncio.to_thread(audit_segments.segments, self._files)
        last = self._last(found[-1].end if found else 0)
        own = SealedNote()
        if found:
            own = SealedNote(found[0].start, found[-1].end, _text(last))
        if noted != own or await self._over(found):
            return True
        if found:
            # Repeated each time, because a process may have ended before the trim.
            await self._log.trim_to(_behind(last))
        return await self._is_full(last)

    async def move(self, signed: EntryId) -> bool:
        """Write due entries into a segment, and remove segments past their retention.

        Args:
            signed: position of the last signed entry; later entries are not moved.

        Returns:
            True if the store's note of the segments was forged.

        Raises:
            StoreUnavailable: when the store does not answer.
            AuditUnreadable: when an entry differs from the tree, or a segment is
                missing; then nothing was dropped.
            OSError: when the folder cannot be written; then nothing was dropped.
        """
        noted = await self._log.noted()
        found = await asyncio.to_thread(audit_segments.segments, self._files)
        # A segment without a note may have been written incompletely.
        for one in found:
            if one.end > noted.end:
                await asyncio.to_thread(audit_segments.read_segment, self._files, one)
        end = found[-1].end if found else 0
        if end < noted.end:
            raise audit_segments.missing(self._files, end)
        last = self._last(end)
        is_forged = noted != SealedNote() and noted.last != _text(self._last(noted.end))
        is_full = await self._is_full(last)
        if is_full and (rows := await self._rows(last, signed)):
            found.append(await asyncio.to_thread(self._written, rows, end))
        if not found:
            return is_forged
        over = await self._over(found)
        first, end = found[len(over)].start, found[-1].end
        last = self._last(end)
        # Before files are removed: a reader that misses a file reads this note.
        await SEAL(
            self._store.conn,
            sealed=self._keys.audit_sealed,
            first=first,
            end=end,
            last=_text(last),
        )
        for one in over:
            audit_segments.segment_path(self._files, one).unlink(missing_ok=True)
        tenant = self._keys.tenant
        logger.info("audit.sealed tenant=%s first=%d end=%d", tenant, first, end)
        await self._log.trim_to(_behind(last))
        return is_forged

    def _last(self, end: int) -> EntryId:
        return self._files.place(end - 1) if end else (0, 0)

    def _written(self, rows: list[Row], end: int) -> Segment:
        """Write the next segment, after the newest one, which ends at an index."""
        start = end or self._files.index_of(entry_id(rows[0].seq))
        what = "Nothing of the audit log leaves the store"
        found = audit_segments.compared(self._files, start, rows, what=what)
        if len(found) < len(rows):
            raise AuditUnreadable(f"{what}: the tree ends before it.")
        segment = Segment(start, start + len(rows))
        audit_segments.write_segment(self._files, segment, found)
        return segment

    async def _is_full(self, last: EntryId) -> bool:
        """Return whether the entries after a position fill a segment or are overdue."""
        conn, audit = self._store.conn, self._keys.audit
        reply, length = await conn.transaction(
            ["XRANGE", audit, f"({_text(last)}", "+", "COUNT", 1], ["XLEN", audit]
        )
        found = entries(reply)
        if not found:
            return False
        waited_ms = await conn.now_ms(audit) - entry_id(found[0].id)[0]
        # The length includes some entries that are already in files, because the store
        # drops whole nodes.
        is_late = waited_ms > SEAL_AFTER.total_seconds() * 1000
        return is_late or number(length) > SEGMENT + 200

    async def _rows(self, last: EntryId, signed: EntryId) -> list[Row]:
        found: list[Row] = []
        async with aclosing(self._log.live(last)) as rows:
            async for row in rows:
                if entry_id(row.seq) > signed or len(found) == SEGMENT:
                    break
                found.append(row)
        return found

    async def _over(self, found: list[Segment]) -> list[Segment]:
        """Return the segments past their retention; the newest one is kept."""
        kept_ms = int(self._store.audit_kept.total_seconds() * 1000)
        oldest_ms = await self._store.conn.now_ms(self._keys.audit) - kept_ms
        places = await asyncio.to_thread(
            lambda: [self._files.place(one.end - 1) for one in found[:-1]]
        )
        return [
            one
            for one, last in zip(found[:-1], places, strict=True)
            if last < (oldest_ms, 0)
        ]


def _text(place: EntryId) -> str:
    return f"{place[0]}-{place[1]}"


def _behind(place: EntryId) -> EntryId:
    return place[0], place[1] + 1
