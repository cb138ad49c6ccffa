"""Open the approvals of a turn, sealed as they are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pydantic_core import to_json

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.standing import CHECKED_FOR_MS
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.store import codec, run_list
from keyturn.gateway.store.agent_load import ASKED_MS
from keyturn.gateway.store.approval_indexes import PendingIndex, timer_rows
from keyturn.gateway.store.atomic_write import Loaded
from keyturn.gateway.store.audit_seals import event_texts
from keyturn.gateway.store.connection import Argument, Connection, Reply, number, text
from keyturn.gateway.store.encryption import DATA_KEY
from keyturn.gateway.store.freezes import compared
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.known_records import KnownRecords
from keyturn.gateway.store.next_version import following
from keyturn.gateway.store.person_queues import rows_of
from keyturn.gateway.store.precedents import (
    Known,
    Row,
    encrypted_rows,
    rows_of_opening,
    seen_precedents,
)
from keyturn.gateway.store.record_seals import SEAL, RecordSeals
from keyturn.gateway.store.run_list import Listed
from keyturn.gateway.store.script import Script
from keyturn.gateway.store.windows import Use, as_rows


@dataclass(frozen=True)
class Preconditions:
    """What has to hold still when a turn opens, and what its calls reserved.

    Attributes:
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


OPEN = Script("open", is_fenced=True)


class TurnOpener:
    """Opens approvals of all tenants.

    Args:
        conn: to the server.
        known: what this process knows of approvals.
        load: reads one.
    """

    def __init__(
        self,
        conn: Connection,
        known: KnownRecords,
        load: Callable[[str], Awaitable[Loaded | None]],
    ) -> None:
        self._conn = conn
        self._known = known
        self._load = load
        self._pending = PendingIndex(conn)

    async def open(
        self,
        keys: Keys,
        turn_key: str,
        approvals: Sequence[Approval],
        *,
        verdicts: bytes,
        events: Sequence[Event],
        thread: tuple[str, str],
        preconditions: Preconditions,
    ) -> list[Listed] | None:
        """Store the approvals of one turn, their events and the verdicts, once.

        Args:
            keys: of the tenant.
            turn_key: the same for every submit of this turn.
            approvals: new records; their times are set here.
            verdicts: to answer this turn with again; see `open.lua`.
            events: what to announce.
            thread: agent and thread id.
            preconditions: what must not have changed meanwhile.

        Returns:
            The run's earlier approvals in which something may still happen; None when
            the turn was opened before, or something moved since the calls were
            evaluated: read and evaluate them again.

        Raises:
            CorruptRecord: a record of the turn is there, and its verdicts are not.
        """
        # Before the script, not in it: an agent that is listed without anything pending
        # costs one look, one that is pending without being listed is never shown to
        # reviewers.
        if approvals:
            await self._pending.add(keys, thread[0])
        standing = await self._standing_rows(preconditions.standing)
        if standing is None:
            return None
        run = keys.run(preconditions.run_ref)
        turn = keys.turn(turn_key)
        values: dict[str, Argument | Sequence[Argument]] = {
            "turn": turn,
            "run": run,
            "expiry": keys.expiry,
            "outbox": keys.outbox,
            "audit": keys.audit,
            "reservation": keys.reservation(turn_key, as_rows(preconditions.reserved)),
            "frozen": keys.frozen,
            "waiting": keys.waiting(thread[0]),
            "requests_10m": keys.requests_10m(thread[0]),
            "rejected": keys.rejected(*thread),
            "timers": keys.timers,
            "outdated": keys.outdated,
            "queue_groups": keys.queue_groups,
            "records": [
                key
                for one in approvals
                for key in (keys.head(one.id), keys.document(one.id))
            ],
            "keep_ms": KEEP_MS,
            "verdicts": verdicts,
            "events": event_texts(
                self._conn, keys, events, of=[one.id for one in approvals], rev=1
            ),
            "unfrozen": to_json(compared(self._conn, keys, preconditions.names)),
            "limits": to_json(
                {
                    "waiting": preconditions.waiting,
                    "requests_10m": preconditions.requests_10m,
                    "asked_ms": ASKED_MS,
                }
            ),
            "counted": as_rows(preconditions.counted),
            "refused": as_rows(preconditions.refused),
            "is_reserved": bool(preconditions.reserved),
            "precedents": to_json(
                encrypted_rows(
                    self._conn,
                    [*rows_of_opening(keys, approvals), *preconditions.auto_runs],
                )
            ),
            "seen": to_json(seen_precedents(preconditions.known)),
            "standing": to_json([row for row, _ in standing]),
            "not_rejected": to_json([*preconditions.not_rejected]),
        }
        of = run, turn if verdicts else ""
        texts = [item.requested for one in approvals for item in one.items]

        def rows(created_ms: int) -> list[tuple[dict[str, object], bytes]]:
            seals, held = self._known.seals, preconditions.held
            return [
                _opening_row(seals, keys, of, one, held, created_ms)
                for one in approvals
            ]

        async def write(created_ms: int) -> list[Reply]:
            opened = await aside(partial(rows, created_ms), texts)
            return await OPEN(
                self._conn,
                **values,
                approvals=to_json([row for row, _ in opened]),
                created_ms=created_ms,
                documents=[document for _, document in (*opened, *standing)],
            )

        reply = await write(preconditions.now_ms)
        if text(reply[0]) == "late":  # such as after a slow triage
            reply = await write(number(reply[1]))
        match text(reply[0]):
            case "opened":
                return run_list.listed(keys, reply[1])
            case "damaged":
                raise CorruptRecord(turn_key)
            case _:
                return None

    async def _standing_rows(
        self, used: Sequence[Approval]
    ) -> list[tuple[dict[str, object], bytes]] | None:
        """Return what is written of standing approvals; None: one has moved."""
        found: list[tuple[dict[str, object], bytes]] = []
        for one in used:
            seen = await self._load(one.id)
            row = _standing_row(self._known.seals, seen, one) if seen else None
            if row is None:
                return None
            found.append(row)
        return found


def _standing_row(
    seals: RecordSeals, seen: Loaded, used: Approval
) -> tuple[dict[str, object], bytes] | None:
    """Return what the script compares and writes of a standing approval.

    Args:
        seals: of the records.
        seen: as it was read.
        used: the same with its uses from now on.

    Returns:
        The row, and the document beside it; None when it has another rev.
    """
    before, stored = seen.approval, seen.stored
    if stored is None or before.rev != used.rev:
        return None
    fields, after = following(seals, stored, before, used, {})
    row: dict[str, object] = {
        "id": used.id,
        "as_read": {"rev": str(used.rev), SEAL: stored.seal.hex()},
        "checked_ms": CHECKED_FOR_MS,
        "fields": fields | {"rev": str(used.rev + 1)},
    }
    return row, after.document


def _opening_row(
    seals: RecordSeals,
    keys: Keys,
    of: tuple[str, str],
    approval: Approval,
    held: Mapping[str, Sequence[Use]],
    created_ms: int,
) -> tuple[dict[str, object], bytes]:
    """Return what the script needs to store a new approval: a row, and its document.

    Args:
        seals: of the records.
        keys: of the tenant.
        of: keys of its run and its turn; the turn is "" if nobody submits it again.
        approval: to be opened.
        held: item id to what the item uses.
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
    run, turn = (bytes.fromhex(key.rpartition(":")[2]) for key in of)
    document, data_key = seals.encryption.stored(opened.id, codec.document(opened))
    raw = {"run": run + approval.ns.encode(), "turn": turn, DATA_KEY: data_key}
    used = ((item.index, as_rows(held.get(item.id, ()))) for item in items)
    fields: dict[str, str | bool] = {
        **codec.head(opened),
        "rev": "1",
        "n": str(len(items)),
        **{name: one.hex() for name, one in raw.items() if one},
        **{f"{index}:w": rows for index, rows in used if rows != "[]"},
    }
    stored = seals.sealed(opened.id, codec.applied({}, fields), document)
    row: dict[str, object] = {
        "id": approval.id,
        "ns": approval.ns,
        "ttl_ms": approval.ttl_ms,
        "state": items[0].state.value,
        "count": len(items),
        "timers": timer_rows(approval.waiting),
        "fields": {**fields, SEAL: stored.seal.hex()},
        "queues": rows_of(keys, approval),
    }
    return row, document
