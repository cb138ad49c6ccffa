"""Open the approvals of a turn, and write their next versions unless they changed.

Writes use optimistic concurrency: a change names the inputs it was computed from, and
the script that writes it compares them. With a ledger, the attempts that a change uses
are recorded before it is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pydantic_core import to_json

from keyturn.gateway.approvals import timing
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.executing import (
    CLAIMED,
    Attempt,
    begun_attempts,
    next_attempt,
    spent_by,
)
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.standing import CHECKED_FOR_MS
from keyturn.gateway.background import begun, waited_for
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.store.connection.connection import (
    Connection,
    Ledger,
    Reply,
    number,
    text,
)
from keyturn.gateway.store.keys import KEEP_MS, Keys, hash_of
from keyturn.gateway.store.limits.freezes import freezes_of
from keyturn.gateway.store.limits.history import (
    ASKED_MS,
    FAILED_MS,
    Known,
    Row,
    Use,
    as_rows,
    encrypted_rows,
    rows_of_change,
    rows_of_opening,
    seen_precedents,
)
from keyturn.gateway.store.records import codec
from keyturn.gateway.store.records.approval_indexes import Listed, listed, timer_rows
from keyturn.gateway.store.records.codec import SEAL, RecordSeals, Stored
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.encryption import DATA_KEY, encrypted_document
from keyturn.gateway.store.sealing.event_seals import sealed_texts


@dataclass(frozen=True)
class Loaded:
    """An approval at ``now_ms`` of the store's clock.

    Attributes:
        approval: the record.
        now_ms: Unix time in milliseconds.
        stored: the stored form; None if the record was not read from the store.
    """

    approval: Approval
    now_ms: int
    stored: Stored | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class EvaluationInputs:
    """An item's window uses, and the inputs of its evaluation.

    Attributes:
        uses: the item's uses of windows.
        totals: the sum of each window.
        known: precedents; None if the evaluation does not depend on them.
    """

    uses: Sequence[Use]
    totals: Mapping[str, int]
    known: Known | None = None


@dataclass(frozen=True)
class Write:
    """A change, and related data that is written in the same step.

    Attributes:
        change: the next version.
        inputs: evaluation inputs by item index. The change is computed again if a
            window has a higher sum, or if the precedents differ.
        unfrozen: names that must not be frozen.
        rejection: from `rejection_effects`; empty if no call is rejected.
        is_fenced: True if it requires the lease of the current context.
        standing: a standing approval that must be unchanged since it was read.
    """

    change: Change
    inputs: Mapping[int, EvaluationInputs] = field(
        default_factory=dict[int, EvaluationInputs]
    )
    unfrozen: Sequence[str] = ()
    rejection: Mapping[str, object] = field(default_factory=dict[str, object])
    is_fenced: bool = False
    standing: Approval | None = None

    @property
    def approval(self) -> Approval:
        """Return the next version."""
        return self.change.approval


@dataclass(frozen=True)
class WriteMany:
    """Changes of several approvals of one tenant, written all or none.

    None of them is written under a thread's lease.

    Attributes:
        writes: one for each changed approval; at least one.
        events: events about all changes together.
    """

    writes: Sequence[Write]
    events: Sequence[Event] = ()


T = TypeVar("T")


async def after_spending(
    ledger: Ledger,
    attempts: Sequence[Attempt],
    unspent: Sequence[Attempt],
    now_ms: int,
    write: Callable[[], Awaitable[T]],
) -> T:
    """Write to Redis after the attempts are recorded; see `Ledger.spend`.

    Args:
        ledger: the ledger.
        attempts: attempts to record.
        unspent: attempts that must still be unused.
        now_ms: the store's clock.
        write: returns a false value if it wrote nothing.
    """

    async def both() -> T:
        await ledger.spend(attempts, unspent, now_ms=now_ms)
        is_used = False
        try:
            written = await write()
            is_used = bool(written)
        finally:
            if not is_used:
                await ledger.take_back(attempts, now_ms=now_ms)
        return written

    # Not interrupted by cancellation: between the two writes, the call would end up in
    # doubt.
    return await waited_for(begun(both()))


async def spend_again(
    ledger: Ledger | None,
    loaded: Loaded,
    standing: Approval | None,
    only: Item | None = None,
) -> None:
    """Record the attempts of running calls again, with the same owners.

    For a claim that was written although its process got no reply. ``standing`` is the
    standing approval that covers the call.

    Raises:
        AlreadySpent: there is another attempt: an older record was restored.
    """
    approval = loaded.approval
    attempts = [
        attempt
        for one in (approval.items if only is None else (only,))
        if one.state in CLAIMED
        for attempt in begun_attempts(approval, one, standing)
    ]
    if ledger is not None and attempts:
        await ledger.spend(attempts, now_ms=loaded.now_ms, again=True)


def moves(
    conn: Connection, keys: Keys, seen: Loaded, what: Write
) -> tuple[dict[str, object], Stored]:
    """Return a script's arguments for one change, named as in `next_version.lua`.

    The second result is the next version in stored form.
    """
    before, change = seen.approval, what.change
    after = change.approval
    if seen.stored is None:
        raise ValueError("what is stored of the record is not known")
    uses = {str(i): as_rows(one.uses) for i, one in what.inputs.items()}
    fields, stored = following(RecordSeals(conn), seen.stored, before, after, uses)
    states = _states(before, after)
    values: dict[str, object] = {
        "id": before.id,
        "rev": str(before.rev),
        "seen_ms": seen.now_ms,
        "before_ms": change.before_ms,
        "unfrozen": freezes_of(conn).compared(keys, what.unfrozen),
        "fires": change.fires,
        "fields": fields,
        # The seal, not only `rev`: another master may have other changes under the same
        # revision.
        "as_read": _claims_as_read(seen.stored, fields)
        | {SEAL: seen.stored.seal.hex()},
        "states": states,
        "uses": [_uses(i, inputs) for i, inputs in sorted(what.inputs.items())],
        "set": [*timing.timers(before, after, now_ms=seen.now_ms), *change.timers],
        "events": sealed_texts(conn, keys, change.events),
        "job": _job_text(change),
        "rejection": _rejection(before, what),
        "failed": _failed(before, after),
        "precedents": encrypted_rows(conn, rows_of_change(keys, before, after)),
        "seen": seen_precedents(one.known for one in what.inputs.values() if one.known),
        "standing": _states_as_read(what.standing),
    }
    # Omit empty values, which are the majority.
    return {name: one for name, one in values.items() if one}, stored


def following(
    seals: RecordSeals,
    seen: Stored,
    before: Approval,
    after: Approval,
    uses: Mapping[str, str],
) -> tuple[dict[str, str | bool], Stored]:
    """Return the head's fields to write, and the next version in stored form.

    Args:
        seals: seals of the records.
        seen: this version in stored form.
        before: this version, parsed.
        after: the next version.
        uses: the items' new uses of windows, by index.
    """
    wrapped = seen.head.get(DATA_KEY, b"")
    document, data_key = encrypted_document(
        seals.conn, after.id, codec.document(after), wrapped
    )
    old = codec.head(before).keys()
    head = {name: one for name, one in seen.head.items() if name not in old}
    head |= codec.head(after.with_(rev=before.rev + 1))
    if data_key:
        head[DATA_KEY] = data_key
    # The script moves the uses itself.
    fields = codec.changed(seen.head, head)
    for i, used in uses.items():
        if used.encode() != head.get(f"{i}:w", b"[]"):
            head[f"{i}:w"] = used.encode()
    stored = seals.sealed(after.id, head, document)
    return fields | {SEAL: stored.seal.hex()}, stored


def _claims_as_read(seen: Stored, fields: Iterable[str]) -> dict[str, str]:
    """Return the claims that must be unchanged since the record was read."""
    # Only claims that this change moves: heartbeats of other items do not matter.
    moved = (field for field in fields if field.endswith(":u"))
    return {field: seen.head.get(field, b"").decode() for field in moved}


def _states_as_read(standing: Approval | None) -> list[tuple[str, str]]:
    return [(standing.id, standing.items[0].state.value)] if standing else []


def _states(before: Approval, after: Approval) -> dict[str, str]:
    """Return the states of items whose state or deadline changed."""
    return {
        str(item.index): item.state
        for item, was in zip(after.items, before.items, strict=True)
        if item.state is not was.state
        or (
            item.is_pending and timing.end_of(after, item) != timing.end_of(before, was)
        )
    }


def _uses(index: int, inputs: EvaluationInputs) -> dict[str, object]:
    totals = [str(inputs.totals[use.name]) for use in inputs.uses]
    return {"index": str(index), "rows": as_rows(inputs.uses), "totals": totals}


def _failed(before: Approval, after: Approval) -> list[str]:
    """Return the items whose failure this change reports."""
    return [
        item.id
        for item, was in zip(after.items, before.items, strict=True)
        # Compared by identity: `with_` copies no members, so an unchanged result is the
        # same object, while a late report replaces it.
        if item.result is not was.result and item.result and not item.result.ok
    ]


def _rejection(before: Approval, what: Write) -> dict[str, object]:
    # A human authorization ends the row of rejections, even if an earlier call of the
    # same card was rejected.
    is_authorized = any(
        item.state is ItemState.AUTHORIZED and was.state is ItemState.PENDING
        for item, was in zip(what.approval.items, before.items, strict=True)
    )
    return {**what.rejection, **({"ends": True} if is_authorized else {})}


def _job_text(change: Change) -> str:
    """Return the job that a change queues, as text; "" for none."""
    approval = change.approval
    has_agent = not (approval.is_standing or approval.resumes_itself)
    if not (change.resumes and has_agent):
        return ""
    run = approval.run_ref
    return Job.to_resume(approval.tenant, run.agent, run.thread).model_dump_json()


CHANGE = Script("change")
FENCED_CHANGE = Script("change", is_fenced=True)


async def run_change(
    conn: Connection,
    keys: Keys,
    places: Sequence[tuple[str, str, str]],
    changes: Sequence[bytes],
    *,
    events: Sequence[str] = (),
    script: Script = CHANGE,
) -> list[Reply]:
    """Run the script that writes changes, see `change.lua`.

    Args:
        conn: the server.
        keys: keys of the tenant.
        places: id, agent and thread of each approval.
        changes: for each approval its change and its document.
        events: texts of events about all changes.
        script: the script, fenced or not.
    """
    return await script(
        conn,
        expiry=keys.expiry,
        outbox=keys.outbox,
        audit=keys.audit,
        jobs=keys.jobs,
        timers=keys.timers,
        frozen=keys.frozen,
        records=[
            key
            for approval_id, agent, thread in places
            for key in (
                keys.head(approval_id),
                keys.document(approval_id),
                keys.waiting(agent),
                keys.rejections(agent),
                keys.rejected(agent, thread),
                keys.failures(agent),
            )
        ],
        failed_ms=FAILED_MS,
        keep_ms=KEEP_MS,
        events=events,
        count=len(places),
        changes=changes,
    )


async def write(
    conn: Connection, keys: Keys, seen: Mapping[str, Loaded], what: WriteMany
) -> list[Loaded]:
    """Write changes of approvals unless anything they depend on changed since.

    Args:
        conn: the server.
        keys: keys of the approvals' tenant.
        seen: the records the changes were computed from, by id.
        what: the changes.

    Returns:
        The new versions; an empty list after a conflict, when nothing was written.

    Raises:
        StoreUnavailable: when the result is unknown.
        LeaseLost: another process has the lease now; nothing was written.
        AlreadySpent: an attempt to execute was used before; nothing was written.
    """
    write_now = partial(_written, conn, keys, seen, what)
    # With a ledger, its entries are made first.
    attempts = [
        attempt
        for one in what.writes
        for attempt in spent_by(
            seen[one.approval.id].approval, one.approval, one.standing
        )
    ]
    if conn.ledger is None or not attempts:
        return await write_now()
    unspent = [
        next_attempt(one.standing, one.standing.items[0])
        for one in what.writes
        if one.standing and one.standing.items[0].state is ItemState.AUTHORIZED
    ]
    now_ms = max(seen[one.approval.id].now_ms for one in what.writes)
    return await after_spending(conn.ledger, attempts, unspent, now_ms, write_now)


async def _written(
    conn: Connection, keys: Keys, seen: Mapping[str, Loaded], what: WriteMany
) -> list[Loaded]:
    after = [one.approval for one in what.writes]
    stored, changes = list[Stored](), list[bytes]()
    for one in what.writes:
        read = seen[one.approval.id]
        move = partial(moves, conn, keys, read, one)
        moved, next_stored = await aside(move, _texts(one.approval))
        stored.append(next_stored)
        changes += [to_json(moved), next_stored.document]
    reply = await run_change(
        conn,
        keys,
        [(one.id, one.agent, one.thread) for one in after],
        changes,
        events=sealed_texts(conn, keys, what.events),
        script=FENCED_CHANGE if any(one.is_fenced for one in what.writes) else CHANGE,
    )
    if text(reply[0]) != "done":
        return []
    now_ms = number(reply[1])
    pairs = zip(after, stored, strict=True)
    return [Loaded(one, now_ms=now_ms, stored=each) for one, each in pairs]


def _texts(approval: Approval) -> list[str]:
    """Return the large texts of a version."""
    found: list[str] = []
    for item in approval.items:
        found += {item.requested, item.action}
        found += [one.payload for one in (item.result, item.late_result) if one]
    return found


UNLIMITED = 1_000_000_000


@dataclass(frozen=True)
class Preconditions:
    """Conditions for opening a turn, and the reservations of its calls.

    Attributes:
        run_ref: the turn's run.
        thread: agent and thread id.
        names: names of which none may be frozen.
        waiting: limit of the agent's pending items, these included.
        requests_10m: limit of its requests within ten minutes, these included.
        held: uses of the items, by item id.
        counted: uses that count from now on for the length of their window: those of
            calls that run now, and all requests.
        refused: uses of calls that do not run.
        reserved: all of these, in the order of reservation.
        auto_runs: new precedents of calls without a record.
        known: precedents that were used for the evaluation.
        standing: standing approvals that cover calls, each with the revision that was
            read and its new uses.
        now_ms: the store's clock at the evaluation; the approvals are not created
            before.
        not_rejected: fingerprints of further calls, of which none may have been
            rejected in the thread.
    """

    run_ref: RunRef
    thread: tuple[str, str]
    # Without defaults: a caller that forgets a limit must not be without one.
    names: tuple[str, ...]
    waiting: int
    requests_10m: int
    held: Mapping[str, Sequence[Use]] = field(default_factory=dict[str, Sequence[Use]])
    counted: Sequence[Use] = ()
    refused: Sequence[Use] = ()
    reserved: Sequence[Use] = ()
    auto_runs: Sequence[Row] = ()
    known: Sequence[Known] = ()
    standing: Sequence[Approval] = ()
    now_ms: int = 0
    not_rejected: Collection[str] = ()


OPEN = Script("open", is_fenced=True)


async def open_turn(
    conn: Connection,
    load: Callable[[str], Awaitable[Loaded | None]],
    keys: Keys,
    turn_key: str,
    approvals: Sequence[Approval],
    *,
    verdicts: bytes,
    events: Sequence[Event],
    preconditions: Preconditions,
) -> list[Listed] | None:
    """Store the approvals of one turn, their events and the verdicts, once.

    Args:
        conn: connection to the store.
        load: reads an approval.
        keys: keys of the tenant.
        turn_key: identifies the turn in repeated submissions.
        approvals: new records; their times are set here.
        verdicts: answer for repeated submissions; see `open.lua`.
        events: events to announce.
        preconditions: conditions that must still be met.

    Returns:
        The run's earlier approvals with open items. None if the turn was opened
        before, or if conditions changed since the evaluation: read and evaluate
        the calls again.

    Raises:
        CorruptRecord: the turn has a record, but its verdicts are missing.
    """
    seals = RecordSeals(conn)
    standing = await _standing_rows(seals, load, preconditions.standing)
    if standing is None:
        return None
    run = keys.run(preconditions.run_ref)
    turn = keys.turn(turn_key)
    precedents = [*rows_of_opening(keys, approvals), *preconditions.auto_runs]
    write = partial(
        OPEN,
        conn,
        turn=turn,
        run=run,
        expiry=keys.expiry,
        outbox=keys.outbox,
        audit=keys.audit,
        reservation=keys.reservation(turn_key, as_rows(preconditions.reserved)),
        frozen=keys.frozen,
        waiting=keys.waiting(preconditions.thread[0]),
        requests_10m=keys.requests_10m(preconditions.thread[0]),
        rejected=keys.rejected(*preconditions.thread),
        timers=keys.timers,
        records=[
            key
            for one in approvals
            for key in (keys.head(one.id), keys.document(one.id))
        ],
        keep_ms=KEEP_MS,
        verdicts=verdicts,
        events=sealed_texts(conn, keys, events),
        unfrozen=freezes_of(conn).compared(keys, preconditions.names),
        limits={
            "waiting": preconditions.waiting,
            "requests_10m": preconditions.requests_10m,
            "asked_ms": ASKED_MS,
        },
        counted=as_rows(preconditions.counted),
        refused=as_rows(preconditions.refused),
        is_reserved=bool(preconditions.reserved),
        precedents=encrypted_rows(conn, precedents),
        seen=seen_precedents(preconditions.known),
        standing=[row for row, _ in standing],
        not_rejected=[*preconditions.not_rejected],
    )
    of = run, turn if verdicts else ""
    texts = [item.requested for one in approvals for item in one.items]

    def rows(created_ms: int) -> list[tuple[dict[str, object], bytes]]:
        held = preconditions.held
        return [_opening_row(seals, of, one, held, created_ms) for one in approvals]

    async def written(created_ms: int) -> list[Reply]:
        opened = await aside(partial(rows, created_ms), texts)
        return await write(
            approvals=[row for row, _ in opened],
            created_ms=created_ms,
            documents=[document for _, document in (*opened, *standing)],
        )

    reply = await written(preconditions.now_ms)
    if text(reply[0]) == "late":  # for example, after a slow triage
        reply = await written(number(reply[1]))
    match text(reply[0]):
        case "opened":
            return listed(keys, reply[1])
        case "damaged":
            raise CorruptRecord(turn_key)
        case _:
            return None


async def _standing_rows(
    seals: RecordSeals,
    load: Callable[[str], Awaitable[Loaded | None]],
    used: Sequence[Approval],
) -> list[tuple[dict[str, object], bytes]] | None:
    """Return the changes of standing approvals; None after a conflict."""
    found: list[tuple[dict[str, object], bytes]] = []
    for one in used:
        seen = await load(one.id)
        row = _standing_row(seals, seen, one) if seen else None
        if row is None:
            return None
        found.append(row)
    return found


def _standing_row(
    seals: RecordSeals, seen: Loaded, used: Approval
) -> tuple[dict[str, object], bytes] | None:
    """Return a script's row to compare and write a standing approval.

    Args:
        seals: seals of the records.
        seen: the record that was read.
        used: the record with its new uses.

    Returns:
        The row and the document; None if the revision differs.
    """
    before, stored = seen.approval, seen.stored
    if stored is None or before.rev != used.rev:
        return None
    fields, after = following(seals, stored, before, used, {})
    row: dict[str, object] = {
        "id": used.id,
        "as_read": {"rev": str(used.rev), SEAL: stored.seal.hex()},
        "checked_ms": CHECKED_FOR_MS,
        "fields": fields,
    }
    return row, after.document


def _opening_row(
    seals: RecordSeals,
    of: tuple[str, str],
    approval: Approval,
    held: Mapping[str, Sequence[Use]],
    created_ms: int,
) -> tuple[dict[str, object], bytes]:
    """Return a script's row to store a new approval, and its document.

    Args:
        seals: seals of the records.
        of: keys of its run and its turn; "" if the turn is never submitted again.
        approval: the new approval.
        held: uses of the items, by item id.
        created_ms: the store's clock.
    """
    ends_ms = created_ms + approval.ttl_ms
    items = [
        item
        if item.is_pending
        else item.with_(changed_at_ms=created_ms, lapses_at_ms=ends_ms)
        for item in approval.items
    ]
    opened = approval.replacing(
        *items, rev=1, created_at_ms=created_ms, expires_at_ms=ends_ms
    )
    run, turn = (bytes.fromhex(hash_of(key)) for key in of)
    document, data_key = encrypted_document(
        seals.conn, opened.id, codec.document(opened)
    )
    raw = {"run": run + approval.ns.encode(), "turn": turn, DATA_KEY: data_key}
    used = {f"{one.index}:w": as_rows(held.get(one.id, ())) for one in items}
    head = {
        **codec.head(opened),
        "n": str(len(items)).encode(),
        **{name: one for name, one in raw.items() if one},
        **{name: rows.encode() for name, rows in used.items() if rows != "[]"},
    }
    stored = seals.sealed(opened.id, head, document)
    row: dict[str, object] = {
        "id": approval.id,
        "ns": approval.ns,
        "ttl_ms": approval.ttl_ms,
        "state": items[0].state.value,
        "count": len(items),
        "timers": timer_rows(approval.waiting),
        "fields": codec.changed({}, stored.head),
    }
    return row, document
