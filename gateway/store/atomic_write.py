"""Write an approval's next version atomically, with optimistic concurrency."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic_core import to_json

from twokey.gateway.approvals import timing
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.events import Event
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.store import codec
from twokey.gateway.store.agent_load import FAILED_MS
from twokey.gateway.store.audit_seals import (
    event_texts,
    sealed_texts,
    with_sealed_event,
)
from twokey.gateway.store.connection import Connection, number, text
from twokey.gateway.store.freeze_list import compared
from twokey.gateway.store.handover import NOBODY, Takers
from twokey.gateway.store.keys import KEEP_MS, KeptText, Keys
from twokey.gateway.store.person_queues import moves
from twokey.gateway.store.precedents import Known, rows_of_change, seen_precedents
from twokey.gateway.store.record_heads import following, sealed, with_format
from twokey.gateway.store.record_seals import SEAL, RecordSeals, Stored
from twokey.gateway.store.record_texts import changed_texts
from twokey.gateway.store.resume_jobs import job_text, offered
from twokey.gateway.store.script import Script
from twokey.gateway.store.windows import Use, as_rows

CHANGE = Script("change")
FENCED_CHANGE = Script("change", is_fenced=True)
CHANGE_MANY = Script("change_many")

_OF_ONE = ("head", "pinned", "waiting", "rejections", "rejected", "failures")
"""Keys of each approval, in the order of `change_many.lua`."""


@dataclass(frozen=True)
class Loaded:
    """An approval as it stood at ``now_ms`` of the store's clock.

    Attributes:
        approval: the record.
        now_ms: Unix time in milliseconds.
        remembered: None when it was read for this. Otherwise nobody did, and the store
            compares what moves, and not only the ``rev``, with what is remembered, and
            these of its large fields. A master that took over may have another change
            under the number of one that it lacks.
        read_s: when it came here, by a clock of this process that never goes back.
        stored: as it is stored; None where somebody made a reading of what they keep.
    """

    approval: Approval
    now_ms: int
    remembered: Mapping[str, bytes] | None = field(
        default=None, repr=False, compare=False
    )
    read_s: float = field(default_factory=time.monotonic, repr=False, compare=False)
    stored: Stored | None = field(default=None, repr=False, compare=False)

    @property
    def age_s(self) -> float:
        """Return for how many seconds it has been here."""
        return time.monotonic() - self.read_s


@dataclass(frozen=True)
class EvaluationInputs:
    """What an item uses of which windows, and what it was evaluated by.

    Attributes:
        uses: of the item.
        totals: what each window came to.
        known: precedents; None when the evaluation does not depend on them.
    """

    uses: Sequence[Use]
    totals: Mapping[str, int]
    known: Known | None = None


@dataclass(frozen=True)
class Assumed:
    """What a change was computed from that nobody read for it: it has to be so.

    Attributes:
        totals: what each window comes to, by item, window and use of it.
        place: channel and ts of the approval's own card; "" when it does not matter.
        stands_in_for_nobody: user id of somebody whom no queue is delegated to; "" when
            it does not matter.
        unseen: key that nothing stands under yet; "" when it does not matter.
    """

    totals: Mapping[tuple[int, str, str], int] = field(
        default_factory=dict[tuple[int, str, str], int]
    )
    place: str = ""
    stands_in_for_nobody: str = ""
    unseen: str = ""


@dataclass(frozen=True)
class Write:
    """A change, and what the store keeps beside the record in the same step.

    Attributes:
        change: the next version.
        inputs: what items use of windows from now on, by index. It is computed again
            when a window holds more than was evaluated by, or for other precedents.
        unfrozen: names of which none may be frozen.
        rejection: from `rejection_effects`; empty when nothing is rejected.
        is_fenced: the holder of a thread's lease writes it: refuse it of a former one.
        standing: a standing approval that has to be in the state that was read.
        assumed: what has to be as it was assumed to be.
        kept: texts to keep beside the record, in its shard.
    """

    change: Change
    inputs: Mapping[int, EvaluationInputs] = field(
        default_factory=dict[int, EvaluationInputs]
    )
    unfrozen: Sequence[str] = ()
    rejection: Mapping[str, object] = field(default_factory=dict[str, object])
    is_fenced: bool = False
    standing: Approval | None = None
    assumed: Assumed = Assumed()
    kept: Sequence[KeptText] = ()

    @property
    def approval(self) -> Approval:
        """Return the next version."""
        return self.change.approval


@dataclass(frozen=True)
class WriteMany:
    """Changes of several approvals of one shard, which are written together or not.

    They are of one tenant, and nobody writes them as the holder of a thread's lease.

    Attributes:
        writes: one for each approval that changes; at least one.
        events: about all of it.
    """

    writes: Sequence[Write]
    events: Sequence[Event] = ()


async def write(
    conn: Connection,
    keys: Keys,
    seen: Loaded,
    what: Write,
    takers: Takers = NOBODY,
) -> Loaded | None:
    """Write a change if nothing moved since it was read.

    ``takers`` are offered the job that it queues.

    Returns:
        What stands now; None when something moved, and nothing was written.

    Raises:
        StoreUnavailable: when it is not known to be written.
        LeaseLost: another holder has the lease now; nothing was written.
    """
    moved, after = _moves(conn, keys, seen, what)
    is_read = seen.remembered is None
    async with offered(takers, conn, keys, what.change, is_read=is_read) as offer:
        reply = await (FENCED_CHANGE if what.is_fenced else CHANGE)(
            conn,
            **_keys_of(keys, seen.approval),
            thread=offer.thread,
            change=to_json(moved),
            failed_ms=FAILED_MS,
            keep_ms=KEEP_MS,
            taker=offer.taker,
        )
        offer.told(reply)
    if text(reply[0]) != "done":
        return None
    return Loaded(what.approval, now_ms=number(reply[1]), stored=after)


async def write_many(
    conn: Connection, keys: Keys, seen: Mapping[str, Loaded], what: WriteMany
) -> bool:
    """Write changes of several approvals if nothing of any moved since it was read.

    Args:
        conn: the server.
        keys: of their shard.
        seen: what each was computed from, by its id.
        what: to write.

    Returns:
        False when something moved, and nothing was written.

    Raises:
        StoreUnavailable: when it is not known to be written.
    """
    read = [seen[one.approval.id] for one in what.writes]
    of_each = [_keys_of(keys, one.approval) for one in read]
    pairs = zip(read, what.writes, strict=True)
    reply = await CHANGE_MANY(
        conn,
        **{name: key for name, key in of_each[0].items() if name not in _OF_ONE},
        records=[of_one[name] for of_one in of_each for name in _OF_ONE],
        failed_ms=FAILED_MS,
        keep_ms=KEEP_MS,
        events=event_texts(conn, keys, what.events),
        changes=[to_json(_moves(conn, keys, *pair)[0]) for pair in pairs],
    )
    return text(reply[0]) == "done"


def _moves(
    conn: Connection, keys: Keys, seen: Loaded, what: Write
) -> tuple[dict[str, object], Stored]:
    """Return what a script is told of one change, by the names of `next_version.lua`.

    Beside it stands what is stored from then on.
    """
    before, change = seen.approval, what.change
    after = change.approval
    # Comparing identities spares the JSON of the items that nothing happened to.
    pairs = zip(before.items, after.items, strict=True)
    moved = [(was, now) for was, now in pairs if was is not now]
    were, are = [was for was, _ in moved], [now for _, now in moved]
    old = codec.head(before, were)
    head = codec.changed(old, codec.head(after, are))
    states = _states(before, after)
    stored = seen.stored
    if stored is None:
        raise ValueError("what is stored of the record is not known")
    # Only what changed is sent: most changes are about one of six large texts.
    texts = changed_texts(before, after, moved)
    seals = RecordSeals(conn)
    texts = seals.encryption.changes(before.id, before.tenant, stored.head, texts)
    fields = with_format(stored.head, head | texts)
    uses = {str(i): as_rows(one.uses) for i, one in what.inputs.items()}
    sealed_after = sealed(seals, before.id, following(stored, fields, uses))
    fields[SEAL] = sealed_after.seal.hex()
    values: dict[str, object] = {
        "id": before.id,
        "rev": str(before.rev),
        "seen_ms": seen.now_ms,
        "before_ms": change.before_ms,
        "unfrozen": compared(conn, keys, before.tenant, what.unfrozen),
        "fires": change.fires,
        # The seal says more than the `rev`: another master may have other changes under
        # the same number.
        "as_read": _as_read(old, head, seen) | {SEAL: stored.seal.hex()},
        "fields": fields,
        "states": states,
        "uses": {str(i): _uses(inputs) for i, inputs in what.inputs.items()},
        "set": [*timing.timers(before, after), *change.timers],
        "events": sealed_texts(
            conn, keys, change.events, of=[before.id], rev=before.rev + 1
        ),
        "job": job_text(change),
        "rejection": with_sealed_event(
            conn, keys, _keys_of(keys, before)["rejected"], _rejection(before, what)
        ),
        "failed": _failed(before, after),
        "precedents": rows_of_change(conn, keys, before, after),
        "seen": seen_precedents(one.known for one in what.inputs.values() if one.known),
        "standing": _states_as_read(what.standing),
        "queues": moves(keys, before, after, is_due_moved=bool(states)),
        "assumed": _assumptions(
            keys, before, what.assumed, large=_large_as_read(seen, were)
        ),
        "kept": what.kept,
    }
    # Most of a change is empty.
    return {name: one for name, one in values.items() if one}, sealed_after


def _keys_of(keys: Keys, approval: Approval) -> dict[str, str]:
    of_one = script_keys(keys, approval.id, approval.tenant, approval.agent)
    rejected = keys.rejected(approval.tenant, approval.agent, approval.thread)
    return {**of_one, "rejected": rejected}


def script_keys(
    keys: Keys, approval_id: str, tenant: str, agent: str
) -> dict[str, str]:
    """Return the keys of a change, by the names that they have in its script."""
    return {
        "head": keys.head(approval_id),
        "pinned": keys.pinned(approval_id),
        "expiry": keys.expiry,
        "outbox": keys.outbox,
        "audit": keys.audit,
        "jobs": keys.jobs,
        "waiting": keys.waiting(tenant, agent),
        "timers": keys.timers,
        "frozen": keys.frozen(tenant),
        "rejections": keys.rejections(tenant, agent),
        "failures": keys.failures(tenant, agent),
    }


def _as_read(
    old: Mapping[str, str], head: Iterable[str], seen: Loaded
) -> dict[str, str]:
    """Return which fields of the head have to be as they were read."""
    if seen.remembered is not None:
        return {**dict.fromkeys(head, ""), **old}
    # Only claims that this change moves: a heartbeat of another item of the card is
    # none of its business.
    return {field: old.get(field, "") for field in head if field.endswith(":u")}


def _large_as_read(seen: Loaded, moved: Iterable[Item]) -> dict[str, str]:
    """Return the SHA-1 of what is remembered of an approval and of these items."""
    indexes = {str(item.index) for item in moved}
    return {
        # As scripts can make it. It is compared with what was in the same field.
        name: hashlib.sha1(value, usedforsecurity=False).hexdigest()
        for name, value in (seen.remembered or {}).items()
        if not (index := name.partition(":")[0]).isdigit() or index in indexes
    }


def _states_as_read(standing: Approval | None) -> list[tuple[str, str]]:
    return [(standing.id, standing.items[0].state.value)] if standing else []


def _assumptions(
    keys: Keys, before: Approval, what: Assumed, *, large: Mapping[str, str]
) -> dict[str, object]:
    # What is not assumed is left out: most changes assume nothing.
    found: dict[str, object] = {
        "large": large,
        "totals": [[*use, str(total)] for use, total in what.totals.items()],
        "place": what.place,
        "alone": what.stands_in_for_nobody,
        "unseen": what.unseen,
    }
    if what.stands_in_for_nobody:
        found["delegations"] = keys.delegations(before.tenant)
    return {name: one for name, one in found.items() if one}


def _states(before: Approval, after: Approval) -> dict[str, str]:
    """Return the states of items that moved, or whose deadline did."""
    return {
        str(item.index): item.state
        for item, was in zip(after.items, before.items, strict=True)
        if item.state is not was.state
        or (
            item.is_pending and timing.end_of(after, item) != timing.end_of(before, was)
        )
    }


def _uses(inputs: EvaluationInputs) -> dict[str, object]:
    totals = [str(inputs.totals[use.name]) for use in inputs.uses]
    return {"rows": as_rows(inputs.uses), "totals": totals}


def _failed(before: Approval, after: Approval) -> list[str]:
    """Return the items whose execution was reported as failed by this change."""
    return [
        item.id
        for item, was in zip(after.items, before.items, strict=True)
        # By identity: a late report replaces the result, while an unchanged one is the
        # same object (`with_` copies no members).
        if item.result is not was.result and item.result and not item.result.ok
    ]


def _rejection(before: Approval, what: Write) -> dict[str, object]:
    # An authorization by people ends the row of rejections, also when an earlier call
    # of the same card was rejected.
    is_authorized = any(
        item.state is ItemState.AUTHORIZED and was.state is ItemState.PENDING
        for item, was in zip(what.approval.items, before.items, strict=True)
    )
    return {**what.rejection, **({"ends": True} if is_authorized else {})}
