"""Index of revoked API keys and of freeze epochs in the audit log.

An attacker with write access to Redis can restore an older key or list of freezes whose
seal is valid. The writer of the audit tree therefore keeps a file next to the tree with
the revoked keys and the epoch of the newest list of freezes, one line of JSON each. The
lines of an entry are on disk before its checkpoint.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.events import EPOCH, Event, EventName
from keyturn.gateway.store.audit.files import Row, write_file

_FREEZES = (EventName.FREEZE_SET, EventName.FREEZE_LIFTED)
_FACTS = tuple(f'"{name}"' for name in (EventName.API_KEY_REVOKED, *_FREEZES))


class AuditIndex:
    """The index of all tenants in one process.

    Attributes:
        folder: folder of the files, next to the trees; None: there is no index.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._known: dict[str, int] = {}
        self._sizes: dict[Path, int] = {}
        # Event loops in several threads share one store.
        self._lock = threading.Lock()

    def is_revoked(self, tenant: str, key_id: str) -> bool:
        """Return whether a tenant's log contains the revocation of an API key."""
        return self._newest(tenant, _key_name(tenant, key_id)) > 0

    def freeze_epoch(self, tenant: str) -> int:
        """Return the newest epoch of a tenant's list of freezes; 0 if unknown."""
        return self._newest(tenant, _freezes_name(tenant))

    def write(self, tenant: str, rows: Iterable[Row]) -> None:
        """Write the facts in entries to the file; blocks, so call it in a thread."""
        path = self._path(tenant)
        facts = [fact for row in rows if (fact := _fact_in(row))]
        if path is None or (not facts and path.exists()):
            return
        # A newline before each line: an earlier process may have died in mid-line.
        lines = "".join(f"\n{json.dumps(one)}\n" for one in facts)
        write_file(path, lines.encode(), "ab")

    def exists(self, tenant: str) -> bool:
        """Return whether the file exists."""
        path = self._path(tenant)
        return path is not None and path.exists()

    def _newest(self, tenant: str, name: str) -> int:
        # Another process may have written to the file.
        if (path := self._path(tenant)) is not None:
            with suppress(OSError):
                self._read(path)
        return self._known.get(name, 0)

    def _read(self, path: Path) -> None:
        size = path.stat().st_size
        if size == self._sizes.get(path):
            return
        for line in path.read_bytes().splitlines():
            with suppress(ValueError), self._lock:
                name, number = json.loads(line)
                self._known[name] = max(self._known.get(name, 0), int(number))
        self._sizes[path] = size

    def _path(self, tenant: str) -> Path | None:
        return self.folder / f"{tenant}.facts.jsonl" if self.folder else None


def _fact_in(row: Row) -> tuple[str, int] | None:
    """Return the fact in an entry about an API key or freezes."""
    # The event's name may also occur in a person's text, so parse the event.
    is_sealed = row.state == SealState.SEALED
    if not is_sealed or not any(one in row.event for one in _FACTS):
        return None
    event = Event.model_validate_json(row.event)
    if event.name is EventName.API_KEY_REVOKED:
        return _key_name(event.tenant, event.data.get("key", "")), 1
    if event.name in _FREEZES and (epoch := event.data.get(EPOCH)):
        return _freezes_name(event.tenant), int(epoch)
    return None


def _key_name(tenant: str, key_id: str) -> str:
    return f"api_key {tenant} {key_id}"


def _freezes_name(tenant: str) -> str:
    return f"freezes {tenant}"
