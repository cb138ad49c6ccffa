"""A store with a tree over its audit log, in a folder of the test."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.service.report.audit_writing import AuditWriter, public_keys
from keyturn.gateway.store.audit.files import TreeFiles
from keyturn.gateway.store.connection.connection import Argument
from keyturn.gateway.store.keys import LEASE_MS, Keys
from keyturn.gateway.store.runs.threads import ThreadStore
from keyturn.gateway.store.sealing.event_seals import sealed_text
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_proofs import Checkpoint, verified_checkpoint
from keyturn.gateway.trust.key_folder import Keyring, Role

ANA = "T1/U0ANA"


class Clock:
    """Seconds that the test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Writer(AuditWriter):
    """A writer of a log that has the entries of the test alone."""

    async def _tell_keys(self) -> None:
        """Write no entry about the signing keys."""


class AuditHarness:
    """The audit log of one tenant, and its writer."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder
        store.keyring = Keyring(folder / "keys", makes=Role)
        store.keyring.make_missing(datetime(2026, 1, 1, tzinfo=UTC))
        store.tree_folder = folder / "audit"
        # The lease of the tests' store ends if the machine pauses for 2 s.
        store.threads = ThreadStore(store.sealing, lease_ms=LEASE_MS)
        self.clock = Clock()
        self.writer = self.another()

    def another(self) -> AuditWriter:
        """Return the writer of another process."""
        return Writer(self.store, self.keys, clock=self.clock)

    @property
    def keys(self) -> Keys:
        return self.store.keys_of_tenant("default")

    @property
    def files(self) -> TreeFiles:
        assert self.store.tree_folder
        return TreeFiles(self.store.tree_folder, self.keys.tenant)

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints, each with a signature that verifies."""
        assert self.store.keyring
        origin = self.files.origin()
        assert origin
        trusted = public_keys(self.store.keyring)
        return [
            verified_checkpoint(note, origin=origin, keys=trusted)
            for note in self.files.notes()
        ]

    async def put(self, count: int, *, age_ms: int = 0, sealed: bool = True) -> None:
        """Write entries, each about a separate approval."""
        at_ms = await self.store.conn.now_ms("") - age_ms
        rows: list[list[Argument]] = []
        for _ in range(count):
            event = Event(
                name=EventName.ITEM_REJECTED,
                tenant="default",
                approval=f"ap_{self.keys.tenant}_{secrets.token_hex(16)}",
                actor=ANA,
                reason="zu teuer 高",
            ).model_dump_json(exclude_defaults=True)
            text = sealed_text(self.store.conn, self.keys, event)
            body, seal = text.split("\n")
            row: list[Argument] = ["XADD", self.keys.audit, f"{at_ms}-*", "e", body]
            rows.append([*row, "at", at_ms, *(["s", seal] if sealed else [])])
        for start in range(0, len(rows), 1000):
            await self.store.conn.transaction(*rows[start : start + 1000])
