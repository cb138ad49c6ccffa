"""Inputs, preconditions and result of opening a turn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.standing import CHECKED_FOR_MS
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.store import codec, timers
from twokey.gateway.store.agent_load import ASKED_MS
from twokey.gateway.store.keys import LISTED_BYTES, Keys
from twokey.gateway.store.person_queues import rows_of
from twokey.gateway.store.precedents import Known, Row
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
    not_rejected: Collection[str] = ()

    @property
    def limits(self) -> dict[str, int]:
        """Return how much the agent may ask of people, as the script reads it."""
        return {
            "waiting": self.waiting,
            "requests_10m": self.requests_10m,
            "asked_ms": ASKED_MS,
        }

    @property
    def unfrozen(self) -> tuple[str, tuple[str, ...]]:
        """Return the tenant, and under which names nothing may be frozen."""
        return self.tenant, self.names


def standing_rows(standing: Sequence[Approval]) -> list[dict[str, object]]:
    """Return what the script compares and writes of standing approvals."""
    return [
        {
            "id": one.id,
            "rev": str(one.rev),
            "checked_ms": CHECKED_FOR_MS,
            "uses": uses(one),
        }
        for one in standing
    ]


def row(
    keys: Keys,
    approval: Approval,
    new: codec.NewRecord,
    held: Mapping[str, Sequence[Use]],
) -> dict[str, object]:
    """Return what the script needs to store a new approval."""
    return {
        "id": approval.id,
        "ns": approval.ns,
        "ttl_ms": approval.ttl_ms,
        "state": approval.items[0].state.value,
        "timers": timers.rows(approval.waiting),
        "shared": [digest.to_raw(one).hex() for one in new.shared],
        "hashes": [digest.to_raw(item.action_hash).hex() for item in approval.items],
        "queues": rows_of(keys, approval),
        "uses": [as_rows(held.get(item.id, ())) for item in approval.items],
    }
