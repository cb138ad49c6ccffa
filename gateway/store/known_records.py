"""Remember approvals as this process read or wrote them last.

Parsing and checking a record takes longer than reading it. What is read again as it was
is not parsed again, and calls that start and end are computed from what is remembered,
without any reading: the step that writes compares it (`Loaded.remembered`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from twokey.gateway.approvals.record import Approval
from twokey.gateway.clock import now_s
from twokey.gateway.store import codec
from twokey.gateway.store.atomic_write import Loaded, Written
from twokey.gateway.store.schemas import Parts, SchemaStore

MOST_BYTES: Final = 8_000_000
"""How much memory what is remembered takes at most, about."""

KEPT_S: Final = 300.0
"""How long is remembered what is neither read nor written. What this process has no
more to do with, because another one decides it or runs it, would stay for ever in a
process that has little to do."""

_RECORD, _ITEM = 5_000, 8_000
"""About how many bytes a parsed record takes, and each item of it: many times more than
the fields that are stored of them, which are packed."""

Fields = dict[str, bytes]


@dataclass(frozen=True)
class _Known:
    head: Fields
    pinned: bytes
    loaded: Loaded
    at_s: float
    used_s: float

    @property
    def size(self) -> int:
        """Return about how many bytes it takes, parsed and as it was stored."""
        stored = len(self.pinned) + sum(map(len, self.head.values()))
        return stored + parsed_size(self.loaded.approval)


def parsed_size(approval: Approval) -> int:
    """Return about how many bytes a parsed record takes, but for the calls' texts."""
    return _RECORD + _ITEM * len(approval.items)


class KnownRecords:
    """The approvals of one store that this process read or wrote lately.

    Args:
        schemas: the parts that records share.
        clock: seconds that only go forward.

    Attributes:
        schemas: see above.
        bytes: how much memory it takes, about.
    """

    def __init__(
        self, schemas: SchemaStore, *, clock: Callable[[], float] = now_s
    ) -> None:
        self.schemas = schemas
        self._clock = clock
        self._by_id = OrderedDict[str, _Known]()
        # Event loops of several threads share one store.
        self._lock = threading.Lock()
        self.bytes = 0

    def parsed(
        self,
        approval_id: str,
        head: Fields,
        pinned: bytes,
        parts: Parts,
        *,
        now_ms: int,
    ) -> Loaded:
        """Return a record that was read now, parsed unless it is as it was.

        Raises:
            NewerRecord: when a newer version wrote it.
            CorruptRecord: when it is corrupt.
        """
        codec.check_format(approval_id, head)
        known = self._by_id.get(approval_id)
        if known and known.head == head and known.pinned == pinned:
            approval = known.loaded.approval
        else:
            approval = codec.approval(approval_id, head, pinned, parts)
        loaded = Loaded(approval, now_ms)
        at_s = self._clock()
        self._remember(_Known(head, pinned, loaded, at_s, at_s))
        return loaded

    def latest(self, approval_id: str) -> Loaded | None:
        """Return an approval as it was read or written last; None: it is not known.

        It may have moved since. The time is the store's of that moment, plus what has
        passed here since then.
        """
        known = self._by_id.get(approval_id)
        if known is None:
            return None
        passed_ms = int(1000 * (self._clock() - known.at_s))
        now_ms = known.loaded.now_ms + passed_ms
        remembered = {**codec.texts_in(known.head), "pinned": known.pinned}
        return Loaded(known.loaded.approval, now_ms, remembered=remembered)

    def wrote(self, before: Approval, written: Written) -> None:
        """Remember what was written over the record that it was computed from."""
        known = self._by_id.get(before.id)
        if known is None or known.loaded.approval is not before:
            # Its fields are not known; the next reading parses them.
            self.forget(before.id)
            return
        head = dict(known.head)
        head["rev"] = str(before.rev + 1).encode()
        head["format"] = str(codec.FORMAT).encode()
        _apply(head, written.fields)
        for i, rows in written.uses.items():
            if rows.encode() != head.get(f"{i}:w", b"[]"):
                head[f"{i}:w"] = rows.encode()
        at_s = self._clock()
        self._remember(_Known(head, known.pinned, written.loaded, at_s, at_s))

    def renewed(self, approval_id: str, index: int, until_ms: int) -> None:
        """Remember until when a claim stands, which no other number tells."""
        known = self._by_id.get(approval_id)
        if known is None or index >= len(known.loaded.approval.items):
            return
        approval = known.loaded.approval
        item = approval.items[index].with_(claimed_until_ms=until_ms)
        loaded = replace(known.loaded, approval=approval.replacing(item))
        head = {**known.head, f"{index}:u": str(until_ms).encode()}
        used_s = self._clock()
        self._remember(replace(known, head=head, loaded=loaded, used_s=used_s))

    def forget(self, approval_id: str) -> None:
        """Forget an approval, of which nothing is known any more."""
        with self._lock:
            self._forget(approval_id)

    def _remember(self, known: _Known) -> None:
        approval_id = known.loaded.approval.id
        with self._lock:
            self._forget(approval_id)
            self._by_id[approval_id] = known
            self.bytes += known.size
            since_s = known.used_s - KEPT_S
            while self._by_id:
                first, oldest = next(iter(self._by_id.items()))
                if self.bytes <= MOST_BYTES and oldest.used_s >= since_s:
                    break
                self._forget(first)

    def _forget(self, approval_id: str) -> None:
        known = self._by_id.pop(approval_id, None)
        if known is not None:
            self.bytes -= known.size


def _apply(fields: Fields, changes: Mapping[str, str | bool]) -> None:
    for name, value in changes.items():
        if isinstance(value, bool):
            fields.pop(name, None)
        elif name.endswith(":h"):
            fields[name] = bytes.fromhex(value)
        else:
            fields[name] = value.encode()
