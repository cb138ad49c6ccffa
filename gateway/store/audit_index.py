"""Newest rev of each approval by the audit log, and whether it was ever claimed.

A record that is older than an entry of the log about it was put back by somebody: its
seal verifies, for it was ours once. Processes that start know nothing of records that
changed before, so the writer of the audit tree keeps beside it, for each approval, the
highest rev that a sealed entry had. It is asked in memory, and for what was not asked
lately in a SQLite file, by one look at one page. The same holds for API keys: one that
was revoked stands there, too.

The file follows from the log: it is written with each checkpoint, and where it is lost
or behind, it is built again from the entries that are kept.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, Field

from twokey.gateway.approvals.audit_leaf import SealState, read_kept
from twokey.gateway.approvals.events import EventName
from twokey.gateway.store.audit_seals import nonce_of
from twokey.gateway.store.audit_segments import Row
from twokey.gateway.store.keys import shard_of_approval

_MOST_KNOWN = 50_000
_APPROVAL = re.compile(r'"approval":"(ap_s[0-9]{1,4}_[0-9a-f]{32})"')
_CLAIMED = f'"{EventName.ITEM_EXECUTING}"'
_REVOKED = f'"{EventName.API_KEY_REVOKED}"'
_TABLES = """
CREATE TABLE IF NOT EXISTS seen (
    approval TEXT PRIMARY KEY, rev INTEGER NOT NULL, claimed INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS place (
    one INTEGER PRIMARY KEY CHECK (one = 1), origin TEXT NOT NULL, place TEXT NOT NULL
);
"""
_UPSERT = """
INSERT INTO seen VALUES (?, ?, ?) ON CONFLICT (approval) DO UPDATE SET
    rev = max(rev, excluded.rev), claimed = max(claimed, excluded.claimed)
"""


class Seen(NamedTuple):
    """What the audit log has of an approval.

    ``rev`` is the highest of its sealed entries, ``claimed`` whether an execution of
    one of its calls was begun.
    """

    rev: int = 0
    claimed: bool = False

    def joined(self, other: Seen) -> Seen:
        """Return what both say."""
        return Seen(max(self.rev, other.rev), self.claimed or other.claimed)


class JsonEvent(BaseModel):
    """What is read of an event that a newer version may have written."""

    name: str = ""
    tenant: str = ""
    data: dict[str, str] = Field(default_factory=dict)


class JsonLeaf(BaseModel):
    """What is read of the leaf of an entry that was erased."""

    seal: str = ""
    rev: int = 0
    name: str = ""
    approval: str = ""


class AuditIndex:
    """The index of all shards, as one process knows it.

    Attributes:
        folder: where the files are, beside the trees; None: what is in memory is all.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._known: OrderedDict[str, Seen] = OrderedDict()
        self._readers: dict[Path, tuple[int, sqlite3.Connection]] = {}
        # Event loops of several threads share one store.
        self._lock = threading.Lock()

    def newest(self, approval: str) -> Seen:
        """Return what is known of an approval; nothing is waited for.

        Compare a record only with what this returned before the record was read: it
        may change right behind the reading.
        """
        return self._newest(approval, shard_of_approval(approval) or "")

    def is_revoked(self, shard: str, tenant: str, key_id: str) -> bool:
        """Return whether the log of a shard has that an API key was revoked."""
        return self._newest(_key_name(tenant, key_id), shard).rev > 0

    def _newest(self, name: str, shard: str) -> Seen:
        with self._lock:
            # What the file says is not remembered: another process may write it.
            return self._known.get(name) or self._stored(name, shard)

    def note(self, seen: Mapping[str, Seen]) -> None:
        """Remember what entries say that cannot get lost any more."""
        for name, one in seen.items():
            found = self._newest(name, shard_of_approval(name) or "").joined(one)
            with self._lock:
                self._keep(name, found)

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for _, reader in self._readers.values():
                reader.close()
            self._readers.clear()

    def write(
        self, shard: str, seen: Mapping[str, Seen], *, origin: str, place: str
    ) -> None:
        """Write what entries up to a place say; blocks, so call it in a thread."""
        path = self._path(shard)
        if path is None:
            return
        path.touch(mode=0o600)
        rows = [(name, one.rev, int(one.claimed)) for name, one in seen.items()]
        with closing(sqlite3.connect(path)) as db, db:
            # Readers go on meanwhile. It can be built again, so it is not synced.
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=OFF")
            db.executescript(_TABLES)
            db.executemany(_UPSERT, rows)
            db.execute("REPLACE INTO place VALUES (1, ?, ?)", (origin, place))

    def place(self, shard: str, origin: str) -> str:
        """Return up to which place of a log the file is written; "" for nothing."""
        path = self._path(shard)
        if path is None or not path.exists():
            return ""
        try:
            with closing(sqlite3.connect(path)) as db:
                found = db.execute("SELECT origin, place FROM place").fetchone()
        except sqlite3.Error:
            # Built again from the log, which is what counts.
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            return ""
        return str(found[1]) if found and found[0] == origin else ""

    def _stored(self, name: str, shard: str) -> Seen:
        path = self._path(shard) if shard else None
        if path is None:
            return Seen()
        query = "SELECT rev, claimed FROM seen WHERE approval = ?"
        try:
            found = self._reader(path).execute(query, (name,)).fetchone()
        except (sqlite3.Error, OSError):
            return Seen()
        return Seen(int(found[0]), bool(found[1])) if found else Seen()

    def _reader(self, path: Path) -> sqlite3.Connection:
        number = path.stat().st_ino
        known = self._readers.get(path)
        if known is not None and known[0] == number:
            return known[1]
        if known is not None:
            known[1].close()
        # Nobody waits for a writer: who may not read at once knows nothing.
        opened = sqlite3.connect(
            f"file:{path}?mode=ro", uri=True, timeout=0, check_same_thread=False
        )
        self._readers[path] = (number, opened)
        return opened

    def _keep(self, approval: str, seen: Seen) -> None:
        self._known[approval] = seen
        self._known.move_to_end(approval)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _path(self, shard: str) -> Path | None:
        return self.folder / f"{shard}.index.sqlite" if self.folder else None


def seen_in(row: Row, state: str) -> tuple[str, Seen] | None:
    """Return what an entry says of an approval, or of an API key; None for nothing."""
    if row.leaf:
        return _seen_in_leaf(row.leaf, row.event)
    rev, _ = nonce_of(row.seal)
    if state != SealState.SEALED:
        return None
    if _REVOKED in row.event and (key := _revoked_in(row.event)):
        return key
    if not rev:
        return None
    found = _APPROVAL.search(row.event)
    return (found[1], Seen(rev, _CLAIMED in row.event)) if found else None


def _seen_in_leaf(text: str, kept: str) -> tuple[str, Seen] | None:
    """Return what is left of an entry that was erased: its approval, and its rev.

    A record that was erased must not come back as it was before it ran, and no API key
    as it was before it was revoked.
    """
    leaf = JsonLeaf.model_validate_json(text)
    if leaf.name == EventName.API_KEY_REVOKED and leaf.seal == SealState.SEALED:
        found = read_kept(text, kept)
        key_id = found.data.get("key", "") if found else ""
        return (_key_name(found.tenant, key_id), Seen(rev=1)) if found else None
    if leaf.seal != SealState.SEALED or not (leaf.rev and leaf.approval):
        return None
    return leaf.approval, Seen(leaf.rev, leaf.name == EventName.ITEM_EXECUTING)


def _revoked_in(event: str) -> tuple[str, Seen] | None:
    # Words of somebody may name the event as well.
    found = JsonEvent.model_validate_json(event)
    if found.name != EventName.API_KEY_REVOKED:
        return None
    return _key_name(found.tenant, found.data.get("key", "")), Seen(rev=1)


def _key_name(tenant: str, key_id: str) -> str:
    return f"api_key {tenant} {key_id}"
