"""Write an approval's next version atomically, with optimistic concurrency."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from twokey.gateway.approvals import ending, timing
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.store import codec
from twokey.gateway.store.agent_load import FAILED_MS
from twokey.gateway.store.connection import (
    Connection,
    fields,
    milliseconds,
    number,
    text,
)
from twokey.gateway.store.jobs import Job
from twokey.gateway.store.keys import KEEP_MS, Keys
from twokey.gateway.store.person_queues import moves
from twokey.gateway.store.precedents import Known, rows_of_change, seen_precedents
from twokey.gateway.store.script import Script, event_texts
from twokey.gateway.store.windows import Use, as_rows

CHANGE = Script("change")
FENCED_CHANGE = Script("change", is_fenced=True)
CHANGE_MANY = Script("change_many")

_OF_ONE = ("head", "blobs", "waiting", "rejections", "rejected", "failures")
"""Keys of each approval, in the order of `change_many.lua`."""


@dataclass(frozen=True)
class Loaded:
    """An approval as it stood at ``now_ms`` of the store's clock."""

    approval: Approval
    now_ms: int


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
        actions: hash of what would run, by item: a master that took over may have
            another change under the number of one that it lacks.
        totals: what each window comes to, by item, window and use of it.
        place: channel and ts of the approval's own card; "" when it does not matter.
        stands_in_for_nobody: user id of somebody whom no queue is delegated to; "" when
            it does not matter.
    """

    actions: Mapping[int, str] = field(default_factory=dict[int, str])
    totals: Mapping[tuple[int, str, str], int] = field(
        default_factory=dict[tuple[int, str, str], int]
    )
    place: str = ""
    stands_in_for_nobody: str = ""


@dataclass(frozen=True)
class Write:
    """A change, and what the store keeps beside the record in the same step.

    Attributes:
        change: the next version.
        inputs: what items use of windows from now on, by index. The change is computed
            again when a window holds more than was evaluated by, or when there are
            other precedents.
        unfrozen: names of which none may be frozen.
        rejection: from `rejection_effects`; empty when nothing is rejected.
        is_fenced: the holder of a thread's lease writes it: refuse it of a former one.
        standing: a standing approval that has to be in the state that was read.
        assumed: what has to be as it was assumed to be.
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
    conn: Connection, keys: Keys, seen: Loaded, what: Write
) -> Loaded | None:
    """Write a change if nothing moved since it was read.

    Returns:
        What stands now; None when something moved, and nothing was written.

    Raises:
        StoreUnavailable: when it is not known to be written.
        LeaseLost: another holder has the lease now; nothing was written.
    """
    values = {name: _text(one) for name, one in _values(keys, seen, what).items()}
    if values["rejection"] == "{}":
        values["rejection"] = ""
    reply = await (FENCED_CHANGE if what.is_fenced else CHANGE)(
        conn,
        **_keys_of(keys, seen.approval),
        failed_ms=FAILED_MS,
        keep_ms=KEEP_MS,
        **values,
    )
    if text(reply[0]) != "done":
        return None
    return Loaded(what.approval, now_ms=number(reply[1]))


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
        events=event_texts(what.events),
        changes=[json.dumps(_values(keys, *pair)) for pair in pairs],
    )
    return text(reply[0]) == "done"


def _values(keys: Keys, seen: Loaded, what: Write) -> dict[str, object]:
    """Return what a script is told of one change, by the names that it has there."""
    before, change = seen.approval, what.change
    after = change.approval
    # Comparing identities spares the JSON of the items that nothing happened to.
    pairs = zip(before.items, after.items, strict=True)
    moved = [(was, now) for was, now in pairs if was is not now]
    were, are = [was for was, _ in moved], [now for _, now in moved]
    old = codec.head(before, were)
    head = codec.changed(old, codec.head(after, are))
    states = _states(before, after)
    # No agent waits for a standing approval.
    job = resume_job(after) if change.resumes and not after.is_standing else None
    return {
        "id": before.id,
        "rev": str(before.rev),
        "seen_ms": seen.now_ms,
        "before_ms": change.before_ms,
        "unfrozen": list(what.unfrozen),
        "fires": change.fires,
        "head_fields": head,
        # Only claims that this change moves: a heartbeat of another item of the card
        # is none of its business.
        "leases": {field: old.get(field, "") for field in head if field.endswith(":u")},
        # Only what changed is sent: a card may have six large texts, and most changes
        # are about one of them.
        "blob_fields": codec.changed(
            codec.blobs(before, were), codec.blobs(after, are)
        ),
        "states": states,
        "uses": {str(i): _uses(inputs) for i, inputs in what.inputs.items()},
        "set": [*timing.timers(before, after), *change.timers],
        "events": event_texts(change.events),
        "job": job.model_dump_json() if job else "",
        "rejection": _rejection(before, what),
        "failed": _failed(before, after),
        "precedents": rows_of_change(keys, before, after),
        "seen": seen_precedents(one.known for one in what.inputs.values() if one.known),
        "standing": _as_read(what.standing),
        "queues": moves(keys, before, after, is_due_moved=bool(states)),
        "assumed": _assumptions(keys, before, what.assumed),
    }


def _text(value: object) -> str | int:
    """Return a value of a change as an argument of its own."""
    if isinstance(value, str | int):
        return value
    # Most of a change is empty.
    return json.dumps(value) if value else "{}" if isinstance(value, dict) else "[]"


async def quarantine(conn: Connection, keys: Keys, approval_id: str) -> None:
    """End a corrupt approval: nothing in it is decided or run any more.

    What waits in it is withdrawn and leaves its windows, it has no deadline any more,
    it is announced, and its thread, if that much can be read, is brought back. An
    approval that was quarantined before is left as it is.
    """
    raw_head, raw_blobs, time = await conn.transaction(
        ["HGETALL", keys.head(approval_id)],
        ["HGETALL", keys.blobs(approval_id)],
        ["TIME"],
    )
    head, now_ms = fields(raw_head), milliseconds(time)
    # The sweep and a click may find the same corrupt record at once: it is announced,
    # and its thread brought back, once.
    is_first = "quarantined" not in head
    # Its keys exist for nobody, so what the script does with them changes nothing.
    nobody = ("", "", RunRef(agent="", thread=""))
    tenant, agent, run_ref = codec.whose(fields(raw_blobs)) or nobody
    event = Event(
        name=EventName.RECORD_QUARANTINED,
        tenant=tenant,
        agent=run_ref.agent,
        thread=run_ref.thread,
        approval=approval_id,
    )
    job = Job.to_resume(tenant, run_ref.agent, run_ref.thread)
    states = {
        str(i): s for i, s in ending.quarantined_states(codec.states(head)).items()
    }
    moved = {f"{i}:s": state for i, state in states.items()}
    since = dict.fromkeys((f"{i}:t" for i in states), str(now_ms))
    await CHANGE(
        conn,
        **_script_keys(keys, approval_id, tenant, agent),
        rejected=keys.rejected(tenant, agent, run_ref.thread),
        id=approval_id,
        # Compared as text with what is there, whatever that is.
        rev=head.get("rev", b"").decode("utf-8", "replace"),
        seen_ms=now_ms,
        before_ms=0,
        unfrozen="[]",
        fires="",
        head_fields=json.dumps({**moved, **since, "quarantined": str(now_ms)}),
        leases="{}",
        blob_fields="{}",
        states=json.dumps(states),
        uses="{}",
        # At 0: takes every timer out, or each would find the corrupt record again.
        set=json.dumps([(kind, 0) for kind in timing.TimerKind]),
        events=event_texts([event] * is_first),
        job=job.model_dump_json() if run_ref.thread and is_first else "",
        rejection="",
        failed="[]",
        failed_ms=FAILED_MS,
        keep_ms=KEEP_MS,
        precedents="[]",
        seen="[]",
        standing="[]",
        # Who might have decided it is the corrupt part, maybe: it stays listed until
        # the last of its queue expires, and nobody can read it.
        queues="{}",
        assumed="{}",
    )


def resume_job(approval: Approval) -> Job:
    """Return the job that brings the agent of an approval back."""
    run_ref = approval.run_ref
    return Job.to_resume(approval.tenant, run_ref.agent, run_ref.thread)


def _keys_of(keys: Keys, approval: Approval) -> dict[str, str]:
    of_one = _script_keys(keys, approval.id, approval.tenant, approval.agent)
    rejected = keys.rejected(approval.tenant, approval.agent, approval.thread)
    return {**of_one, "rejected": rejected}


def _script_keys(
    keys: Keys, approval_id: str, tenant: str, agent: str
) -> dict[str, str]:
    return {
        "head": keys.head(approval_id),
        "blobs": keys.blobs(approval_id),
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


def _as_read(standing: Approval | None) -> list[tuple[str, str]]:
    return [(standing.id, standing.items[0].state.value)] if standing else []


def _assumptions(keys: Keys, before: Approval, what: Assumed) -> dict[str, object]:
    # What is not assumed is left out: most changes assume nothing.
    found: dict[str, object] = {
        "actions": {
            str(i): digest.to_raw(one).hex() for i, one in what.actions.items()
        },
        "totals": [[*use, str(total)] for use, total in what.totals.items()],
        "place": what.place,
        "alone": what.stands_in_for_nobody,
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
