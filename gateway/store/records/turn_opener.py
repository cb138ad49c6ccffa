"""Open the approvals of a turn, with the seals of their stored form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.standing import CHECKED_FOR_MS
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.store.connection.connection import Connection, Reply, number, text
from keyturn.gateway.store.keys import KEEP_MS, Keys, hash_of
from keyturn.gateway.store.limits.agent_load import ASKED_MS
from keyturn.gateway.store.limits.freezes import freezes_of
from keyturn.gateway.store.limits.precedents import (
    Known,
    Row,
    encrypted_rows,
    rows_of_opening,
    seen_precedents,
)
from keyturn.gateway.store.limits.windows import Use, as_rows
from keyturn.gateway.store.records import codec
from keyturn.gateway.store.records.approval_indexes import Listed, listed, timer_rows
from keyturn.gateway.store.records.atomic_write import Loaded, following
from keyturn.gateway.store.records.codec import SEAL, RecordSeals
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.encryption import DATA_KEY, encrypted_document
from keyturn.gateway.store.sealing.event_seals import sealed_texts

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
