"""Write the audit log of a tenant into files, under a signed Merkle tree.

Theory of operation. A process reads the entries of the stream after the last one of the
tree, in their order. It has the lease of the tenant's log and a lock of the files, so
only one process writes at a time. Every 100 entries or 60 seconds, and at shutdown, it
appends the entries to a segment and their leaves to the tree, signs the root of the
tree as a checkpoint, and syncs each file before the next. Only then may entries leave
the store. A new writer cuts off all that follows the newest checkpoint.

A tree has one tenant. Its entries have the order of the tenant's stream, in which the
changes of an approval were made. A tree of several tenants would need an order that
cannot be checked against the streams.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from pathlib import Path

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.events import (
    BY_GATEWAY,
    Event,
    EventName,
    SecurityEvent,
    SecurityKind,
)
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import (
    AuditUnreadable,
    SettingsError,
    StoreUnavailable,
    ThreadUnavailable,
)
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.store.audit import files as audit_files
from keyturn.gateway.store.audit import log
from keyturn.gateway.store.audit.files import Row, TreeFiles, TreeRecord
from keyturn.gateway.store.connection.connection import fields, text
from keyturn.gateway.store.events.outbox import EntryId, entry_id
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.scripts.fences import Lease, holding
from keyturn.gateway.store.sealing.event_seals import read_seal
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_proofs import (
    Checkpoint,
    MerkleTree,
    leaf_hash,
    verified_checkpoint,
)
from keyturn.gateway.trust.key_folder import KeyFolder, Keyring, Role

logger = logging.getLogger(__name__)

CHECKPOINT_ENTRIES = 100
CHECKPOINT_S = 60.0

SEGMENT = 10_000
"""Entries of a segment."""

LEAVES_AFTER = timedelta(hours=1)
"""Age at which a signed entry leaves the store, if a folder is configured."""

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
        # The note that this process last accepted or wrote.
        self._noted = log.TreeNote()
        self._trimmed_s = 0.0
        self._problem = ""
        self._told_keys = ""

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
            await self._report(SecurityKind.STALLED, "audit tree")

    async def _report(self, kind: SecurityKind, about: str, name: str = "") -> None:
        # Not the tenant named in an entry: the content of a forged one is forged, too.
        event = SecurityEvent(
            kind=kind, tenant=self._keys.tenant, about=about, name=name
        )
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
        """Append and sign, unless another process has the lease."""
        try:
            # The lease of a thread is used, with an agent name that no agent has.
            async with self._store.threads.lease(self._keys, "", "audit") as lease:
                with holding(lease), self._files.locked(self._writer) as was_last:
                    if was_last is None:
                        return
                    if not was_last:
                        self._tree = None
                    await self._write_alone(lease, is_last=is_last)
        except ThreadUnavailable:
            logger.debug("audit.written_elsewhere tenant=%s", self._keys.tenant)

    async def _write_alone(self, lease: Lease, *, is_last: bool) -> None:
        noted = await log.TreeNote.read(self._store.conn, self._keys)
        # Another process must not have changed the note.
        if self._tree is None or noted != self._noted:
            self._tree = await self._load(noted)
        await self._tell_keys()
        if self._tree.is_full:
            # No replica confirmed them. A writer adds few entries at once.
            await self._sign(self._tree, lease)
        await self._append(self._tree, lease)
        if self._tree.is_due(self._clock(), is_last=is_last):
            await self._sign(self._tree, lease)

    async def _load(self, noted: log.TreeNote) -> GrowingTree:
        keys = public_keys(self._keyring)
        origin = await asyncio.to_thread(self._files.origin)
        if noted.origin and origin != noted.origin:
            message = (
                f"The audit tree of {self._keys.tenant} was begun in another "
                f"folder than {str(self._files.folder)!r}; bring its files back, let "
                "all gateways share one 'audit_folder', or begin another tree by "
                "'keyturn repair --new-tree'."
            )
            # A process that signed here needs this tree or an explicit restart.
            is_late = self._files.size or await log.is_overdue(
                self._store.conn, self._keys
            )
            raise AuditUnreadable(message) if is_late else _Elsewhere(message)
        found = await asyncio.to_thread(_load_files, self._files, keys)
        if noted != log.TreeNote() and not self._is_known(origin, keys, noted):
            raise AuditUnreadable(
                f"The audit tree in {str(self._files.folder)!r} has no checkpoint with "
                f"{noted.size} entries, the root {noted.root} and the last entry "
                f"{noted.last}, which the store knows: it is an older copy, or one of "
                "both was changed. Bring the newest copy back; entries that another "
                "one lacks may have left the store."
            )
        self._noted = noted
        if origin and not noted.origin:
            # Without the note another gateway could have begun another tree.
            await self._report(SecurityKind.SEAL_WRONG, "audit tree")
        if origin:
            await self._note(found)
        await asyncio.to_thread(self._index_again)
        return found

    def _is_known(
        self, origin: str, keys: tuple[PublicKey, ...], noted: log.TreeNote
    ) -> bool:
        for note in reversed(self._files.notes()):
            found = verified_checkpoint(note, origin=origin, keys=keys)
            if found.size <= noted.size:
                last = log.place_text(self._files.place(found.size - 1))
                own = (origin, found.size, found.root.hex(), last)
                return noted[:4] == own and noted.moved in {"", "1"}
        return False

    async def _tell_keys(self) -> None:
        """Write an entry if the valid signing keys have changed."""
        found = {
            role.value: ",".join(
                sorted({key.label for key in self._keyring.verifying(role)})
            )
            for role in Role
        }
        now = json.dumps(found, sort_keys=True)
        # Gateways take turns, and the settings of another may name other keys.
        if now not in {self._told_keys, self._files.noted_keys()}:
            event = Event(
                name=EventName.KEYS_CHANGED,
                tenant=self._keys.tenant,
                actor=BY_GATEWAY,
                data={role: labels for role, labels in found.items() if labels},
            )
            await self._log.append(event)
            self._files.note_keys(now)
        self._told_keys = now

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
        # The store does not name entries that DEL or XTRIM dropped. Both drop this one
        # as well, which `_drop` keeps until it is old.
        first = text(info.get("recorded-first-entry-id")) or "0-0"
        kept = min(self._store.audit_kept, LEAVES_AFTER)
        age = timedelta(milliseconds=await conn.now_ms(audit) - before[0])
        is_cut = entry_id(first) > before and age < kept
        if is_cut or entry_id(deleted) > before:
            name = log.place_text(before) if is_cut else deleted
            await self._report(
                SecurityKind.SEAL_WRONG, "audit entry", f"{name} deleted"
            )

    async def _add(self, tree: GrowingTree, batch: list[Row], lease: Lease) -> None:
        conn, keys = self._store.conn, self._keys

        def checked() -> list[Row]:
            return [
                one._replace(state=read_seal(conn, keys, one.event, one.seal))
                for one in batch
            ]

        # In a thread, so that a long log does not delay interactive requests.
        found = await asyncio.to_thread(checked)
        for one in found:
            if one.state != SealState.SEALED:
                await self._store.sealing.ensure_known(keys)
                name = f"{one.seq} {one.state}"
                await self._report(SecurityKind.SEAL_WRONG, "audit entry", name)
        tree.add(found, self._clock())
        # Before the checkpoint, and before a replica has these entries: facts of an
        # entry that a failover loses only refuse more.
        await asyncio.to_thread(self._store.audit_index.write, keys.tenant, found)
        if tree.is_full:
            await self._sign(tree, lease)

    async def _sign(self, tree: GrowingTree, lease: Lease) -> None:
        """Sign a checkpoint, after which its entries may leave the store."""
        # Otherwise a failover could lose signed entries and fork the log.
        await self._store.conn.confirm(self._keys.audit)
        key, files = self._keyring.signing(Role.AUDIT), self._files
        lease.check()

        def write() -> Checkpoint:
            records = [_record_of(one) for one in tree.rows]
            audit_files.append(files, tree.head.size, tree.rows, most=SEGMENT)
            files.append(records)
            for one in records:
                tree.head.append(one.leaf)
            checkpoint = Checkpoint(tree.origin, tree.head.size, tree.head.root())
            files.write_checkpoint(checkpoint.signed(key))
            return checkpoint

        # A write that is cut off continues in its thread: only a new load of the files
        # can go on after it.
        self._tree = None
        checkpoint = await asyncio.to_thread(write)
        self._tree = tree
        tree.rows = []
        # For other gateways. Written after the file, which is authoritative; a process
        # may end in between.
        await self._note(tree)
        logger.info(
            "audit.checkpoint origin=%s size=%d root=%s",
            checkpoint.origin, checkpoint.size, checkpoint.root.hex(),
        )  # fmt: skip

    async def _note(self, tree: GrowingTree) -> None:
        """Update the note about a log whose entries are all signed."""
        last = log.place_text(tree.last)
        moved = "1" if self._store.audit_folder else ""
        root = tree.head.root().hex()
        note = log.TreeNote(tree.origin, tree.head.size, root, last, moved)
        if note != self._noted:
            await note.write(self._store.conn, self._keys)
            self._noted = note

    def _index_again(self) -> None:
        """Rebuild a lost index from the files."""
        index, tenant, files = self._store.audit_index, self._keys.tenant, self._files
        if not index.exists(tenant):
            listed = audit_files.segments(files)
            parts = (audit_files.read_segment(files, one) for one in listed)
            index.write(tenant, chain.from_iterable(parts))

    async def _drop(self) -> None:
        """Periodically drop entries that are in files, and expired files."""
        tree = self._tree
        if tree is None or self._clock() - self._trimmed_s < _TRIM_S:
            return
        self._trimmed_s = self._clock()
        kept = self._store.audit_kept
        left = min(kept, LEAVES_AFTER) if self._store.audit_folder else kept
        signed = entry_id(self._noted.last or "0-0")
        await self._log.trim(left, before=log.behind(signed))
        kept_ms = int(kept.total_seconds() * 1000)
        oldest_ms = await self._store.conn.now_ms(self._keys.audit) - kept_ms
        await asyncio.to_thread(audit_files.expire, self._files, (oldest_ms, 0))


@dataclass
class GrowingTree:
    """The tree in the memory of its writer.

    Attributes:
        origin: name of the log.
        head: tree over the entries of the newest checkpoint.
        last: position of the newest entry.
        rows: entries without a checkpoint.
        since_s: time at which the first of them was read.
    """

    origin: str
    head: MerkleTree
    last: EntryId
    rows: list[Row] = field(default_factory=list[Row])
    since_s: float = 0.0

    def add(self, rows: list[Row], now: float) -> None:
        """Add entries."""
        if not self.rows:
            self.since_s = now
        self.rows += rows
        self.last = entry_id(rows[-1].seq)

    def is_due(self, now: float, *, is_last: bool) -> bool:
        """Return whether a checkpoint is due; the first one is due at once."""
        is_late = not self.head.size or now - self.since_s >= CHECKPOINT_S
        return self.is_full or (bool(self.rows) and (is_late or is_last))

    @property
    def is_full(self) -> bool:
        """Return whether `CHECKPOINT_ENTRIES` or more entries wait for a checkpoint."""
        return len(self.rows) >= CHECKPOINT_ENTRIES


def _load_files(files: TreeFiles, keys: tuple[PublicKey, ...]) -> GrowingTree:
    notes = files.notes()
    files.mend(notes)
    newest, head, last = files.checked(notes, keys)
    # Unsigned entries are read again from the store.
    files.cut(newest.size)
    audit_files.cut(files, newest.size)
    return GrowingTree(newest.origin or files.new_origin(), head, last)


def _record_of(row: Row) -> TreeRecord:
    state = SealState(row.state)
    return TreeRecord(entry_id(row.seq), state, leaf_hash(row.opened_leaf.text))


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
