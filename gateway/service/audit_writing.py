"""Write the audit tree of a shard: one leaf for each entry, and signed checkpoints.

Theory of operation. A process reads the entries of the stream behind the last one of
the tree, in their order, and appends their leaves. It does so under the lease of the
shard's log and under a lock of the files, so one process writes at a time. Every 100
entries or 60 seconds, and at the end, it syncs the tree, signs its root as a
checkpoint, and syncs that. Only then may entries leave the store.

A tree has one shard: its entries have one order, that of its stream, which is also the
order in which the changes of an approval were made. A tree of several shards would need
an order that nobody can check against the streams.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from pathlib import Path

from twokey.gateway.approvals.audit_leaf import SealState
from twokey.gateway.approvals.events import BY_GATEWAY, Event, EventName
from twokey.gateway.approvals.security import SecurityEvent, SecurityKind
from twokey.gateway.clock import now_s
from twokey.gateway.errors import (
    AuditUnreadable,
    SettingsError,
    StoreUnavailable,
    ThreadUnavailable,
)
from twokey.gateway.protocol.public_keys import PublicKey
from twokey.gateway.service.growing_tree import GrowingTree
from twokey.gateway.service.sealing import Signed, seal
from twokey.gateway.store.audit_index import Seen, seen_in
from twokey.gateway.store.audit_note import TreeNote, TreeNotes, is_overdue
from twokey.gateway.store.audit_seals import read_seal
from twokey.gateway.store.audit_segments import Row
from twokey.gateway.store.audit_tree import LogName, TreeFiles, TreeRecord
from twokey.gateway.store.fences import Lease, holding
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.readers import EntryId, entry_id
from twokey.gateway.store.store import Store
from twokey.gateway.trust.checkpoints import Checkpoint, verified_checkpoint
from twokey.gateway.trust.key_folder import KeyFolder, Role
from twokey.gateway.trust.keyring import Keyring
from twokey.gateway.trust.merkle_tree import leaf_hash

logger = logging.getLogger(__name__)

_PAGE = 200
_TRIM_S = 60.0


class _Elsewhere(AuditUnreadable):
    """The tree was begun in another folder, which another machine may have."""


class _WrongNote(AuditUnreadable):
    """What the store knows of the tree is not what we wrote there, or not the last."""

    def __init__(self, message: str, kind: SecurityKind) -> None:
        super().__init__(message)
        self.kind = kind


class AuditWriter:
    """Writes the tree of one shard while the process runs, if no other process does.

    Args:
        store: with a keyring that signs for the audit log, and a folder for the tree.
        keys: of the shard.
        tenant: who is told of what is wrong with it, and of other signing keys; ""
            tells nobody.
        clock: seconds that only go forward.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        *,
        tenant: str = "",
        clock: Callable[[], float] = now_s,
    ) -> None:
        self._store = store
        self._keys = keys
        self._tenant = tenant
        self._clock = clock
        self._log = store.audit(keys)
        self._keyring, folder = required(store)
        self._files = TreeFiles(folder, keys.shard)
        store.audit_index.folder = folder
        self._writer = secrets.token_hex(8)
        self._tree: GrowingTree | None = None
        self._notes = TreeNotes(store.conn, store.sealing, keys)
        self._trimmed_s = 0.0
        self._problem = ""

    async def tick(self, *, is_last: bool = False) -> None:
        """Append what is new, sign a checkpoint when it is due, drop what is old.

        Args:
            is_last: sign whatever is not signed yet.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        try:
            if await self._has_work(is_last=is_last):
                await self._write(is_last=is_last)
            await self._drop()
        except (AuditUnreadable, OSError, sqlite3.Error, SettingsError) as error:
            # Entries stay in the store meanwhile, so nothing is lost.
            self._tree = None
            # With its class: that nobody else writes the tree is told as well.
            if (problem := repr(error)) != self._problem:
                self._problem = problem
                await self._tell_problem(error)
        else:
            self._problem = ""

    async def _tell_problem(self, error: Exception) -> None:
        # Several machines without a common folder: the one that has the tree writes.
        is_elsewhere = isinstance(error, _Elsewhere)
        level = logging.WARNING if is_elsewhere else logging.ERROR
        logger.log(level, "audit.not_written shard=%s why=%s", self._keys.shard, error)
        if not is_elsewhere:
            stalled = SecurityKind.STALLED
            kind = error.kind if isinstance(error, _WrongNote) else stalled
            await self._report_tree(kind)

    async def _report_tree(self, kind: SecurityKind) -> None:
        event = SecurityEvent(kind=kind, tenant=self._tenant, about="audit tree")
        await self._store.security.report(self._keys, event)

    async def _has_work(self, *, is_last: bool) -> bool:
        tree = self._tree
        if tree is None or tree.is_due(self._clock(), is_last=is_last):
            return True
        rows = self._log.rows(after=tree.after)
        async with aclosing(rows):
            async for _ in rows:
                return True
        return False

    async def _write(self, *, is_last: bool) -> None:
        try:
            # The lease of a thread is used, with an agent name that no agent has.
            name = self._store.threads.lease(self._keys, "", "", "audit")
            async with name as lease:
                with holding(lease), self._files.locked(self._writer) as was_last:
                    if was_last is None:
                        return
                    noted = await self._notes.read()
                    # Nobody else may change the note while this one writes.
                    if self._tree is None or not was_last or noted != self._notes.last:
                        self._tree = await self._load(noted)
                    await self._tell_keys()
                    await self._append(self._tree, lease)
                    if self._tree.is_due(self._clock(), is_last=is_last):
                        await self._sign(self._tree, lease)
        except ThreadUnavailable:
            logger.debug("audit.written_elsewhere shard=%s", self._keys.shard)

    async def _load(self, noted: TreeNote) -> GrowingTree:
        name = await asyncio.to_thread(self._files.name)
        if (name.origin if name else "") != noted.origin and noted.origin:
            message = (
                f"The audit tree of shard {self._keys.shard} was begun in another "
                f"folder than {str(self._files.folder)!r}; bring its files back, let "
                "all gateways share one 'audit_folder', or begin another tree by "
                "'twokey audit restart'."
            )
            # Who signed here goes on with this tree, or was told to begin another one.
            if name and self._files.notes():
                is_ours = noted.is_sealed
                replayed, wrong = SecurityKind.REPLAYED, SecurityKind.SEAL_WRONG
                raise _WrongNote(message, replayed if is_ours else wrong)
            is_late = await is_overdue(self._store.conn, self._keys)
            raise AuditUnreadable(message) if is_late else _Elsewhere(message)
        if name is None:
            now_ms = await self._store.conn.now_ms(self._keys.audit)
            name = await asyncio.to_thread(self._files.create, now_ms)
        keys = public_keys(self._keyring)
        found = await asyncio.to_thread(_load_files, self._files, name, keys)
        size, root = noted.size, noted.root
        if noted.origin and found.signed < size:
            raise _unless_sealed(
                noted,
                f"The audit tree in {str(self._files.folder)!r} has {found.signed} "
                f"entries, and had {size}: it is an older copy. Bring the newest one "
                "back; entries that it lacks may have left the store.",
            )
        if size and not self._is_known(name, keys, size, root):
            raise _unless_sealed(
                noted,
                f"The audit tree in {str(self._files.folder)!r} has no checkpoint with "
                f"{size} entries and the root {root}, which the store knows: one of "
                "both was changed. 'twokey audit verify' says more.",
            )
        self._notes.last = noted
        if found.signed:
            if not noted.origin:
                # Another gateway could begin another tree meanwhile.
                await self._report_tree(SecurityKind.SEAL_WRONG)
            newest, at = found.head.root().hex(), found.signed_last
            if noted != TreeNote(name.origin, found.signed, newest, is_sealed=True):
                await self._notes.write(name.origin, found.signed, newest, at)
        await self._index_rest(found)
        return found

    def _is_known(
        self, name: LogName, keys: tuple[PublicKey, ...], size: int, root: str
    ) -> bool:
        for note in reversed(self._files.notes()):
            found = verified_checkpoint(note, origin=name.origin, keys=keys)
            if found.size <= size:
                return (found.size, found.root.hex()) == (size, root)
        return False

    async def _tell_keys(self) -> None:
        """Write an entry when other signing keys count than before."""
        own = self._store.keys_of_tenant(self._tenant).shard
        if not self._tenant or self._keys.shard != own:
            return
        found = {
            role.value: ",".join(key.label for key in self._keyring.verifying(role))
            for role in Role
        }
        now = json.dumps(found, sort_keys=True)
        if now == self._files.noted_keys():
            return
        event = Event(
            name=EventName.KEYS_CHANGED,
            tenant=self._tenant,
            actor=BY_GATEWAY,
            data={role: labels for role, labels in found.items() if labels},
        )
        await self._log.append(event)
        self._files.note_keys(now)

    async def _append(self, tree: GrowingTree, lease: Lease) -> None:
        batch: list[Row] = []
        rows = self._log.rows(after=tree.after)
        async with aclosing(rows):
            async for row in rows:
                batch.append(row)
                if len(batch) >= _PAGE:
                    await self._add(tree, batch, lease)
                    batch = []
        if batch:
            await self._add(tree, batch, lease)

    async def _add(self, tree: GrowingTree, batch: list[Row], lease: Lease) -> None:
        conn, keys = self._store.conn, self._keys

        def records() -> tuple[list[TreeRecord], dict[str, Seen]]:
            found: list[TreeRecord] = []
            seen: dict[str, Seen] = {}
            for row in batch:
                state = read_seal(conn, keys, row.event, row.seal).state
                leaf = leaf_hash(row._replace(state=state).leaf_text)
                found.append(TreeRecord(entry_id(row.seq), state, leaf))
                if (one := seen_in(row, state)) is not None:
                    seen[one[0]] = seen.get(one[0], Seen()).joined(one[1])
            return found, seen

        # In a thread: a long log is worked through beside what people wait for.
        found, seen = await asyncio.to_thread(records)
        lease.check()
        await self._report(found, (tree.name.begun_ms, 0))
        await asyncio.to_thread(self._files.append, found)
        tree.add(found, self._clock())
        tree.seen |= {
            name: one.joined(tree.seen.get(name, Seen())) for name, one in seen.items()
        }
        if not conn.confirmed_by:
            # With replicas, an entry may yet get lost: then a checkpoint waits first.
            self._store.audit_index.note(seen)
        if tree.is_full:
            await self._sign(tree, lease)

    async def _report(self, found: list[TreeRecord], begun: EntryId) -> None:
        """Report entries that none of our processes wrote."""
        for one in found:
            if one.state is SealState.SEALED:
                continue
            # What older versions wrote has no seal, and is what the tree began with.
            if one.state is SealState.UNSEALED and one.place < begun:
                continue
            await self._store.sealing.ensure_known(self._keys)
            # Not for the tenant that it names: that is what somebody else wrote.
            event = SecurityEvent(
                kind=SecurityKind.SEAL_WRONG, tenant=self._tenant, about="audit entry",
                name=f"{one.place[0]}-{one.place[1]} {one.state}",
            )  # fmt: skip
            await self._store.security.report(self._keys, event)

    async def _sign(self, tree: GrowingTree, lease: Lease) -> None:
        """Sign a checkpoint; the entries before it may leave the store from then on."""
        # A failover could lose what is signed, and the log would have two versions.
        await self._store.conn.confirm(self._keys.audit)
        key = self._keyring.signing(Role.AUDIT)
        checkpoint = Checkpoint(tree.name.origin, tree.head.size, tree.head.root())
        lease.check()
        await asyncio.to_thread(self._files.write_checkpoint, checkpoint.signed(key))
        tree.is_signed()
        await self._index(tree)
        root, at = checkpoint.root.hex(), tree.signed_last
        # For other gateways: this folder has the log, and so much of it. Behind the
        # file, which alone counts; a process may end in between.
        await self._notes.write(checkpoint.origin, checkpoint.size, root, at)
        logger.info(
            "audit.checkpoint origin=%s size=%d root=%s",
            checkpoint.origin, checkpoint.size, root,
        )  # fmt: skip

    async def _index(self, tree: GrowingTree) -> None:
        """Write what the signed entries say of approvals."""
        index, seen = self._store.audit_index, tree.seen
        tree.seen = {}
        index.note(seen)
        await asyncio.to_thread(
            index.write,
            self._keys.shard,
            seen,
            origin=tree.name.origin,
            place=tree.after,
        )

    async def _index_rest(self, tree: GrowingTree) -> None:
        """Read again what the index lacks of the signed entries."""
        index, origin = self._store.audit_index, tree.name.origin
        place = await asyncio.to_thread(index.place, self._keys.shard, origin)
        if not tree.signed or (place and entry_id(place) >= tree.signed_last):
            return
        conn, keys = self._store.conn, self._keys
        rows = self._log.rows(after=place)
        async with aclosing(rows):
            async for row in rows:
                if entry_id(row.seq) > tree.signed_last:
                    break
                state = read_seal(conn, keys, row.event, row.seal).state
                if (one := seen_in(row, state)) is not None:
                    tree.seen[one[0]] = one[1].joined(tree.seen.get(one[0], Seen()))
        await self._index(tree)

    async def _drop(self) -> None:
        """Seal or drop entries behind the newest checkpoint, now and then."""
        tree = self._tree
        if tree is None or self._clock() - self._trimmed_s < _TRIM_S:
            return
        self._trimmed_s = self._clock()
        folder = self._store.audit_folder
        if folder is not None:
            known = Signed(self._files, tree.signed_last)
            await seal(self._store, self._keys, folder, signed=known)
            return
        await self._log.trim(self._store.audit_kept, before=tree.signed_last)


def _unless_sealed(noted: TreeNote, message: str) -> AuditUnreadable:
    """Return what is wrong: the note, or the files where we wrote the note."""
    if noted.is_sealed:
        return AuditUnreadable(message)
    return _WrongNote(message, SecurityKind.SEAL_WRONG)


def _load_files(
    files: TreeFiles, name: LogName, keys: tuple[PublicKey, ...]
) -> GrowingTree:
    files.mend(files.notes())
    newest, head, last = files.checked(name, keys)
    # Promised to nobody, and read again from the store.
    files.cut(newest.size)
    return GrowingTree(name, head, last, signed=newest.size)


def required(store: Store) -> tuple[Keyring, Path]:
    """Return what a store needs for a tree: keys, and the folder."""
    if store.keyring is None or store.tree_folder is None:
        raise ValueError("the store has no keys or no folder for the audit tree")
    return store.keyring, store.tree_folder


def public_keys(keyring: Keyring) -> tuple[PublicKey, ...]:
    """Return all keys that signed checkpoints, those that are retired as well."""
    own = [one.public for one in KeyFolder(keyring.folder, Role.AUDIT).listed()]
    return tuple(dict.fromkeys([*own, *keyring.known(Role.AUDIT)]))


async def end_audit(writers: Iterable[AuditWriter]) -> None:
    """Sign what is not signed yet, where the store answers."""
    for writer in writers:
        with suppress(StoreUnavailable):
            await writer.tick(is_last=True)
