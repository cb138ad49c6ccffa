"""Precompute how a call is started, together with its approval, while it waits.

The worker of the process in which somebody approves a call starts it a moment later.
What that writes follows from the approval, but for who gave it, when, and by whom it is
started. So it is learned from both samples of the approval (`precomputing`), by the
code that starts calls. A claim then fills it in.

Before, it is compared with what is known here: that very record, the policy, and what
it said. What the store knows is compared by the script: the record's seal, freezes, and
the lease of the thread. Anything else is claimed the long way.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.call_evaluation import CurrentEvaluation
from twokey.gateway.service.starting import has_lapsed, start
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.connection import Connection
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.next_version import Unsealed, unsealed
from twokey.gateway.store.precomputed import Precomputed, precomputed
from twokey.gateway.store.record_seals import SEAL, Stored
from twokey.gateway.store.store import Store
from twokey.gateway.store.templates import Moment, Samples, is_plain

AFTER_MS: Final = (1, 10_000)
"""How long after its approval a call is started by this, at least and at most. In the
same millisecond less would be written: when the call moved stays as it is."""

MOST_KEPT: Final = 100
"""How many approved calls are kept that did not start yet."""


@dataclass(frozen=True)
class Start:
    """How a call is started that was approved in this process.

    Attributes:
        write: what is written.
        evaluated: what the policy said of the call by which it was approved.
        approved: who approved it, and when.
        seal: of the record as it was written then.
        lease_ms: how long the claim stands without a heartbeat.
    """

    write: Precomputed
    evaluated: CurrentEvaluation
    approved: Moment
    seal: bytes
    lease_ms: int

    def moment(self, item: Item, owner: str, now_ms: int) -> Moment | None:
        """Return the moment in which a call starts; None: it was not precomputed.

        Args:
            item: the call.
            owner: the attempt.
            now_ms: the store's clock.
        """
        waited_ms = now_ms - self.approved.now_ms
        is_in_time = AFTER_MS[0] <= waited_ms <= AFTER_MS[1]
        if not (is_in_time and owner) or has_lapsed(item, now_ms):
            return None
        seal = self.seal.hex()
        moment = self.approved._replace(starts_ms=now_ms, owner=owner, seal=seal)
        return moment if is_plain(moment) else None


def precompute_start(
    conn: Connection,
    keys: Keys,
    samples: Samples,
    approved: Sequence[tuple[Approval, Unsealed]],
    index: int,
    evaluated: CurrentEvaluation,
    *,
    lease_ms: int,
) -> Precomputed | None:
    """Precompute the start of a call after its approval; None: not the plain case.

    Args:
        conn: to the store, which is not asked.
        keys: of the approval's shard.
        samples: of its approval.
        approved: what each of them comes to.
        index: of the call.
        evaluated: what the policy says of it.
        lease_ms: how long a claim stands without a heartbeat.
    """
    moments = (
        # The first and the last in which it may start: what holds at both holds in
        # between.
        _started(samples.first, "1", AFTER_MS[0]),
        _started(samples.second, "2", AFTER_MS[1]),
    )
    found: list[Unsealed] = []
    for moment, (approval, after) in zip(moments, approved, strict=True):
        item = approval.items[index]
        if not _is_simple(approval, item, evaluated):
            return None
        if has_lapsed(item, moment.starts_ms):
            return None
        head = {**after.stored.head, SEAL: bytes.fromhex(moment.seal)}
        stored = Stored(head, after.stored.pinned)
        seen = Loaded(approval, moment.starts_ms, remembered={}, stored=stored)
        write = granted(seen, item, evaluated, owner=moment.owner, lease_ms=lease_ms)
        if write is None:
            return None
        found.append(unsealed(conn, keys, seen, write))
    (before, _), _ = approved
    one, other = found
    return precomputed(keys, before, Samples(*moments), one, other, is_fenced=True)


def granted(
    loaded: Loaded,
    item: Item,
    evaluated: CurrentEvaluation,
    *,
    owner: str,
    lease_ms: int,
) -> Write | None:
    """Return what is written of a call that starts; None where it does not."""
    found = start(loaded, item, evaluated, owner=owner, lease_ms=lease_ms)
    if not isinstance(found, Write):
        return None
    is_started = found.approval.items[item.index].state is ItemState.EXECUTING
    return found if is_started else None


class Starts:
    """The starts of calls that were approved in this process, each used once."""

    def __init__(self) -> None:
        self._by_item = OrderedDict[str, Start]()
        # Event loops of several threads share one store.
        self._lock = threading.Lock()

    def keep(self, item_id: str, found: Start) -> None:
        """Keep the start of a call until it is taken, or too many are kept."""
        with self._lock:
            self._by_item[item_id] = found
            while len(self._by_item) > MOST_KEPT:
                self._by_item.popitem(last=False)

    def take(self, item_id: str) -> Start | None:
        """Return the start of a call, once."""
        return self._by_item.pop(item_id, None)


_KEPT = WeakKeyDictionary[Store, Starts]()


def starts_of(store: Store) -> Starts:
    """Return what is kept beside a store: its services do not know each other."""
    found = _KEPT.get(store)
    return _KEPT.setdefault(store, Starts()) if found is None else found


def _started(moment: Moment, sample: str, after_ms: int) -> Moment:
    return moment._replace(
        starts_ms=moment.now_ms + after_ms,
        owner=f"an owner of the precomputation {sample}",
        seal=f"5e{sample}" * 20 + "0000",
    )


def _is_simple(approval: Approval, item: Item, evaluated: CurrentEvaluation) -> bool:
    return (
        # Of what is precomputed the script compares only the item that moves.
        len(approval.items) == 1
        and item.state is ItemState.AUTHORIZED
        and item.cover is None
        # Or a vote may count for one person, and not for another of the same role.
        and item.requirement == evaluated.policy_now.requirement
    )
