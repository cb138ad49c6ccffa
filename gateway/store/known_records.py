"""Remember approvals as this process read or wrote them last.

Parsing and checking a record takes longer than reading it. What is read again as it was
is not parsed again, and calls that start and end are computed from what is remembered,
without any reading: the step that writes compares it (`Loaded.remembered`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from twokey.gateway.approvals.record import Approval
from twokey.gateway.clock import now_s
from twokey.gateway.errors import ForgedRecord
from twokey.gateway.store import codec
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.audit_index import AuditIndex
from twokey.gateway.store.record_seals import REPLAYED, RecordSeals, Stored
from twokey.gateway.store.schemas import Parts, SchemaStore

MOST_BYTES: Final = 8_000_000
"""How much memory what is remembered takes at most, about."""

KEPT_S: Final = 300.0
"""How long is remembered what is neither read nor written. What this process has no
more to do with, because another one decides it or runs it, would stay for ever in a
process that has little to do."""

MOST_REVS: Final = 10_000
"""Of how many approvals is remembered how far they had come: about 3 MB."""

_RECORD, _ITEM = 5_000, 8_000
"""About how many bytes a parsed record takes, and each item of it: many times more than
the fields that are stored of them, which are packed."""


class Lasting(NamedTuple):
    """How far an approval had come: it cannot be older, nor another one of this rev.

    Where two changes of one rev race, both were sealed, and the one that lost was sent
    to the server as well. The seal is None where it is not known.
    """

    rev: int = 0
    seal: bytes | None = None

    def is_replayed(self, rev: int, seal: bytes) -> bool:
        """Return whether a sealed record is not what an approval has come to."""
        return rev < self.rev or (rev == self.rev and self.seal not in (None, seal))


NOTHING: Final = Lasting()


@dataclass(frozen=True)
class _Known:
    """A record as it was read or written last.

    Attributes:
        stored: as it is stored.
        loaded: the same, parsed.
        at_s: when that was.
        used_s: when it was looked at last.
    """

    stored: Stored
    loaded: Loaded
    at_s: float
    used_s: float

    @cached_property
    def size(self) -> int:
        """Return about how many bytes it takes, parsed and as it was stored."""
        return stored_size(self.stored) + parsed_size(self.loaded.approval)


@dataclass(frozen=True)
class _Later:
    """A record that was written from what was precomputed, and is made when asked for.

    Attributes:
        rev, seal: of what was written.
        size: about, as of a `_Known`.
        make: returns the record; None where it cannot be made.
        at_s: when it was written.
    """

    rev: int
    seal: bytes
    size: int
    make: Callable[[], Loaded | None]
    at_s: float

    @property
    def used_s(self) -> float:
        """Return when it was looked at last."""
        return self.at_s

    def made(self) -> _Known | None:
        """Return the record, if it is the one that was written."""
        loaded = self.make()
        if loaded is None or loaded.stored is None or loaded.stored.seal != self.seal:
            return None
        return _Known(loaded.stored, loaded, self.at_s, self.at_s)


def parsed_size(approval: Approval) -> int:
    """Return about how many bytes a parsed record takes."""
    # Not as they are stored: packed, a text may take a hundredth.
    texts = sum([len(one.requested) + len(one.action) for one in approval.items])
    return _RECORD + _ITEM * len(approval.items) + texts


def stored_size(stored: Stored | None) -> int:
    """Return how many bytes a record takes as it is stored."""
    if stored is None:
        return 0
    return len(stored.pinned) + sum(map(len, stored.head.values()))


class KnownRecords:
    """The approvals of one store that this process read or wrote lately.

    Args:
        schemas: the parts that records share.
        seals: of the records.
        index: what the audit log has of approvals, outside of the store.
        clock: seconds that only go forward.

    Attributes:
        schemas, seals: see above.
        bytes: how much memory it takes, about.
    """

    def __init__(
        self,
        schemas: SchemaStore,
        seals: RecordSeals,
        index: AuditIndex | None = None,
        *,
        clock: Callable[[], float] = now_s,
    ) -> None:
        self.schemas = schemas
        self.seals = seals
        self._index = index or AuditIndex()
        self._clock = clock
        self._by_id = OrderedDict[str, _Known | _Later]()
        self._lasting = OrderedDict[str, Lasting]()
        # Event loops of several threads share one store.
        self._lock = threading.Lock()
        self.bytes = 0

    def lasting(self, approval_ids: Iterable[str]) -> dict[str, Lasting]:
        """Return how far these approvals had come.

        Asked before a reading, and given to `parsed` after it: what is written while it
        is on its way may be newer.
        """
        return {one: self._lasting.get(one) or self._begun(one) for one in approval_ids}

    def _begun(self, approval_id: str) -> Lasting:
        """Return the newest revision by the audit log, where a call was ever begun.

        Any other record may also come from a backup; it is recovered, and runs nothing
        that ran before.
        """
        seen = self._index.newest(approval_id)
        return Lasting(seen.rev) if seen.claimed else NOTHING

    def parsed(
        self,
        approval_id: str,
        stored: Stored,
        parts: Parts,
        *,
        now_ms: int,
        lasting: Lasting = NOTHING,
        is_lasting: bool = False,
    ) -> Loaded:
        """Return a record that was read now, parsed unless it is as it was.

        Args:
            approval_id: of the approval.
            stored: what was read.
            parts: that it may share.
            now_ms: the store's clock.
            lasting: from `lasting`, before it was read.
            is_lasting: whether what is read here cannot be lost any more.

        Raises:
            NewerRecord: when a newer version wrote it.
            ForgedRecord: when it is not as it was sealed, or was sealed before what is
                known of it, or in place of that.
            CorruptRecord: when it is corrupt.
        """
        codec.check_format(approval_id, stored.head)
        known = self._by_id.get(approval_id)
        # What was precomputed takes longer to make than what was read takes to parse.
        if isinstance(known, _Known) and known.stored == stored:
            approval = known.loaded.approval
        else:
            approval = codec.approval(approval_id, stored, parts, self.seals)
        if lasting.is_replayed(approval.rev, stored.seal):
            raise ForgedRecord(approval_id, REPLAYED, is_replayed=True)
        loaded = Loaded(approval, now_ms, stored=stored)
        at_s = self._clock()
        self._remember(_Known(stored, loaded, at_s, at_s), is_lasting=is_lasting)
        return loaded

    def latest(self, approval_id: str) -> Loaded | None:
        """Return an approval as it was read or written last; None: it is not known.

        It may have moved since. The time is the store's of that moment, plus what has
        passed here since then.
        """
        known = self._find(approval_id)
        if known is None:
            return None
        stored = known.stored
        remembered = {**codec.texts_in(stored.head), "pinned": stored.pinned}
        approval = known.loaded.approval
        now_ms = self._now_ms(known)
        return Loaded(approval, now_ms, remembered=remembered, stored=stored)

    def with_seal(self, approval_id: str, seal: bytes) -> Loaded | None:
        """Return an approval as `latest` does, if it has this seal.

        The seal stands for all of it, so nothing of it is to be compared by itself.
        """
        known = self._find(approval_id)
        if known is None or known.stored.seal != seal:
            return None
        approval, stored = known.loaded.approval, known.stored
        return Loaded(approval, self._now_ms(known), remembered={}, stored=stored)

    def _now_ms(self, known: _Known) -> int:
        return known.loaded.now_ms + int(1000 * (self._clock() - known.at_s))

    def approval(self, approval_id: str) -> Approval | None:
        """Return an approval as it was read or written last; None: it is not known.

        It may have moved since. Whose it is and what its calls are stays the same.
        """
        found = self._find(approval_id)
        return None if found is None else found.loaded.approval

    def with_stored(self, seen: Loaded) -> Loaded | None:
        """Return a reading with what is stored of it; None: that is not known."""
        if seen.stored is not None:
            return seen
        known = self._find(seen.approval.id)
        if known is None or known.loaded.approval != seen.approval:
            return None
        return replace(seen, stored=known.stored)

    def wrote(self, loaded: Loaded) -> None:
        """Remember what was written."""
        if loaded.stored is not None:
            at_s = self._clock()
            known = _Known(loaded.stored, loaded, at_s, at_s)
            self._remember(known, is_lasting=True)

    def wrote_later(
        self,
        approval_id: str,
        rev: int,
        seal: bytes,
        size: int,
        make: Callable[[], Loaded | None],
    ) -> None:
        """Remember what was written without its record, which is made when asked for.

        Args:
            approval_id: of the approval.
            rev: that stands now.
            seal: of its record.
            size: about how many bytes it takes, as `parsed_size` tells.
            make: returns the record.
        """
        later = _Later(rev, seal, size, make, self._clock())
        self._keep(approval_id, later, Lasting(rev, seal))

    def renewed(self, approval_id: str, index: int, until_ms: int) -> None:
        """Remember until when a claim stands, which no other number tells."""
        known = self._find(approval_id)
        if known is None or index >= len(known.loaded.approval.items):
            return
        approval = known.loaded.approval
        item = approval.items[index].with_(claimed_until_ms=until_ms)
        head = {**known.stored.head, f"{index}:u": str(until_ms).encode()}
        stored = replace(known.stored, head=head)
        loaded = replace(known.loaded, approval=approval.replacing(item), stored=stored)
        used_s = self._clock()
        self._remember(replace(known, stored=stored, loaded=loaded, used_s=used_s))

    def forget(self, approval_id: str) -> None:
        """Forget what an approval looked like; how far it had come stays known."""
        with self._lock:
            self._forget(approval_id)

    def _find(self, approval_id: str) -> _Known | None:
        """Return what is remembered of an approval."""
        found = self._by_id.get(approval_id)
        if not isinstance(found, _Later):
            return found
        made = found.made()
        with self._lock:
            # Something newer may have been remembered meanwhile, in another thread.
            if self._by_id.get(approval_id) is found:
                self._forget(approval_id)
                if made is not None:
                    self._by_id[approval_id] = made
                    self.bytes += made.size
        return made

    def _remember(self, known: _Known, *, is_lasting: bool = False) -> None:
        approval_id, rev = known.loaded.approval.id, known.loaded.approval.rev
        now = Lasting(rev, known.stored.seal) if is_lasting else None
        self._keep(approval_id, known, now)

    def _keep(
        self, approval_id: str, known: _Known | _Later, now: Lasting | None
    ) -> None:
        with self._lock:
            if now is not None:
                was = self._lasting.pop(approval_id, NOTHING)
                self._lasting[approval_id] = now if now.rev > was.rev else was
                if len(self._lasting) > MOST_REVS:
                    self._lasting.popitem(last=False)
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
