"""Inputs, preconditions and result of opening a turn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.standing import CHECKED_FOR_MS
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.store import codec, record_heads, timers
from twokey.gateway.store.keys import LISTED_BYTES, Keys
from twokey.gateway.store.person_queues import rows_of
from twokey.gateway.store.precedents import Known, Row
from twokey.gateway.store.record_heads import following, sealed, with_format
from twokey.gateway.store.record_seals import SEAL, RecordSeals, Stored
from twokey.gateway.store.record_texts import uses
from twokey.gateway.store.windows import Use, as_rows


@dataclass(frozen=True)
class Listed:
    """An approval as its run lists it: its id, and its agent's namespace."""

    id: str
    ns: str

    @classmethod
    def read(cls, keys: Keys, member: bytes) -> Listed:
        """Read what the store lists: an approval, and the namespace behind it."""
        approval, ns = member[:LISTED_BYTES], member[LISTED_BYTES:]
        return cls(keys.unlisted(approval), ns.decode())


@dataclass(frozen=True)
class OpenedTurn:
    """The result of a submit: stored now, or answered from an earlier one.

    Attributes:
        kept: the verdicts that an earlier submit stored, empty where they follow from
            the first approval; None when the turn is new.
        older: the run's earlier approvals in which something may still happen, when
            the turn is new.
    """

    kept: bytes | None = None
    older: Sequence[Listed] = ()


@dataclass(frozen=True)
class Preconditions:
    """What has to hold still when a turn opens, and what its calls reserved.

    Attributes:
        tenant: whose turn it is.
        names: under none of these may anything be frozen.
        waiting: how many items of the agent may be pending, these included.
        requests_10m: how many it may ask people for in ten minutes, these included.
        run_ref: the run that the turn belongs to.
        held: item id to what the item uses.
        counted: uses that count from now on for the length of their window: those of
            the calls that run now, and every request.
        refused: uses of the calls that do not run.
        reserved: all of these, in the order in which they were reserved.
        auto_runs: the precedents that calls without a record are from now on.
        known: the precedents that the calls were evaluated by.
        standing: the standing approvals that cover calls, each with the rev that was
            read and its uses from now on.
        now_ms: the store's clock when the calls were evaluated: what they open is not
            created before.
        not_rejected: fingerprints of calls that were not looked up before: none of them
            may have been rejected in the thread.
    """

    tenant: str
    names: tuple[str, ...]
    waiting: int
    requests_10m: int
    run_ref: RunRef
    held: Mapping[str, Sequence[Use]] = field(default_factory=dict[str, Sequence[Use]])
    counted: Sequence[Use] = ()
    refused: Sequence[Use] = ()
    reserved: Sequence[Use] = ()
    auto_runs: Sequence[Row] = ()
    known: Sequence[Known] = ()
    standing: Sequence[Approval] = ()
    now_ms: int = 0
    not_rejected: Collection[str] = ()

    @property
    def unfrozen(self) -> tuple[str, tuple[str, ...]]:
        """Return the tenant, and under which names nothing may be frozen."""
        return self.tenant, self.names


def standing_row(seals: RecordSeals, read: Stored, used: Approval) -> dict[str, object]:
    """Return what the script compares and writes of a standing approval.

    Args:
        seals: of the records.
        read: as it was stored when it was read.
        used: the same with its uses from now on.
    """
    texts: dict[str, str | bool] = {"uses": uses(used)}
    texts = seals.encryption.changes(used.id, used.tenant, read.head, texts)
    fields = with_format(read.head, texts)
    after = sealed(seals, used.id, following(read, fields, {}))
    return {
        "id": used.id,
        "as_read": {"rev": str(used.rev), SEAL: read.seal.hex()},
        "checked_ms": CHECKED_FOR_MS,
        "fields": fields | {"rev": str(used.rev + 1), SEAL: after.seal.hex()},
    }


@dataclass(frozen=True)
class Place:
    """Where a turn opens, and when.

    Attributes:
        keys: of the shard.
        run: key of the run.
        turn: key of the turn; "" where its verdicts follow from its record.
        created_ms: the store's clock.
    """

    keys: Keys
    run: str
    turn: str
    created_ms: int

    def of(self, approval: Approval) -> tuple[bytes, bytes]:
        """Return the hash of the run with the agent's namespace, and of the turn."""
        run, turn = (
            bytes.fromhex(key.rpartition(":")[2]) for key in (self.run, self.turn)
        )
        return run + approval.ns.encode(), turn


def row(
    seals: RecordSeals,
    place: Place,
    approval: Approval,
    new: codec.NewRecord,
    kept: tuple[bytes, bytes],
    held: Mapping[str, Sequence[Use]],
) -> dict[str, object]:
    """Return what the script needs to store a new approval.

    ``kept`` is what is pinned, as it is stored, and the data key of that.
    """
    pinned, data_key = kept
    created_ms, ends_ms = place.created_ms, place.created_ms + approval.ttl_ms
    items = [
        item
        if item.is_pending
        else item.with_(changed_at_ms=created_ms, lapses_at_ms=ends_ms)
        for item in approval.items
    ]
    opened = approval.replacing(
        *items, rev=1, created_at_ms=created_ms, expires_at_ms=ends_ms
    )
    used = [as_rows(held.get(item.id, ())) for item in items]
    fields = record_heads.opened(opened, new, used, *place.of(approval), data_key)
    stored = Stored(record_heads.applied({}, fields), pinned)
    return {
        "id": approval.id,
        "ns": approval.ns,
        "ttl_ms": approval.ttl_ms,
        "state": items[0].state.value,
        "count": len(items),
        "timers": timers.rows(approval.waiting),
        "shared": [digest.to_raw(one).hex() for one in new.shared],
        "fields": {**fields, SEAL: seals.of(approval.id, stored).hex()},
        "queues": rows_of(place.keys, approval),
    }
