"""Set a corrupt approval aside, so that timers and threads go on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import cast

from pydantic_core import to_json

from keyturn.gateway.approvals import ending, timing
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.security import SecurityEvent, SecurityKind
from keyturn.gateway.approvals.spending import NEVER_AGAIN, Attempt
from keyturn.gateway.errors import ForgedRecord, StoreUnavailable
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.wire import TurnRef
from keyturn.gateway.store import codec
from keyturn.gateway.store.agent_load import FAILED_MS
from keyturn.gateway.store.audit_seals import sealed_texts
from keyturn.gateway.store.connection import Argument, Connection, fields, milliseconds
from keyturn.gateway.store.jobs import Job
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.next_version import record_keys, tenant_keys
from keyturn.gateway.store.record_seals import (
    QUARANTINE_SEAL,
    QUARANTINED,
    WRONG_SEAL,
    RecordSeals,
)
from keyturn.gateway.store.run_list import Listed, RunLists
from keyturn.gateway.store.sealing import ensure_known
from keyturn.gateway.store.security_events import SecurityEvents
from keyturn.gateway.store.writing import CHANGE


class ForgedRecords:
    """Reports forged records, and sets them aside.

    Args:
        conn: to the store.
        security: reports what was noticed.
    """

    def __init__(self, conn: Connection, security: SecurityEvents) -> None:
        self._conn = conn
        self._security = security

    @asynccontextmanager
    async def noticed(self, keys: Keys) -> AsyncGenerator[None]:
        """Set a record aside that is found to be forged, before the finder is told.

        Raises:
            ForgedRecord: that was found inside.
            StoreUnavailable: it may be none: the secret of the store is not known here.
        """
        try:
            yield
        except ForgedRecord as error:
            if error.why == WRONG_SEAL:
                await ensure_known(
                    self._conn, self._security, keys, approval=error.approval
                )
            # Refused in any case, also where none of this is written.
            with suppress(StoreUnavailable):
                tenant, ref = await quarantine(
                    self._conn, keys, error.approval, why=error.why
                )
                await self._security.report(keys, _event(error, tenant, ref))
            raise


def _event(error: ForgedRecord, tenant: str, ref: TurnRef) -> SecurityEvent:
    replayed = error.is_replayed
    return SecurityEvent(
        kind=SecurityKind.REPLAYED if replayed else SecurityKind.SEAL_WRONG,
        tenant=tenant,
        about="record",
        agent=ref.run_ref.agent,
        thread=ref.run_ref.thread,
        approval=error.approval,
    )


async def quarantine(
    conn: Connection, keys: Keys, approval_id: str, *, why: str = ""
) -> tuple[str, TurnRef]:
    """End a corrupt approval: nothing in it is decided or run any more.

    What waits in it is withdrawn and leaves its windows, it has no deadline any more,
    it is announced, and its thread, if that much can be read, is brought back. An
    approval that was quarantined before is left as it is. ``why`` says in words what
    was found. Returns the tenant and the turn that it names, if it does.
    """
    raw_head, document, time = await conn.transaction(
        ["HGETALL", keys.head(approval_id)],
        ["GET", keys.document(approval_id)],
        ["TIME"],
    )
    head, now_ms = fields(raw_head), milliseconds(time)
    # The sweep and a click may find the same corrupt record at once: it is announced,
    # and its thread brought back, once.
    seals = RecordSeals(conn)
    is_first = not seals.is_quarantined(approval_id, head)
    # Its keys exist for nobody, so what the script does with them changes nothing.
    tenant, ref = "", TurnRef(agent="", thread="", message_id="")
    with suppress(ForgedRecord):
        plain = seals.encryption.opened(
            approval_id, head, cast("bytes", document or b"")
        )
        tenant, ref = codec.whose(plain) or (tenant, ref)
    run_ref = ref.run_ref
    await _mend_of(conn, keys, approval_id, ref)
    event = Event(
        name=EventName.RECORD_QUARANTINED,
        tenant=tenant,
        agent=run_ref.agent,
        thread=run_ref.thread,
        approval=approval_id,
        reason=why,
    )
    job = Job.to_resume(tenant, run_ref.agent, run_ref.thread)
    states = {
        str(i): s for i, s in ending.quarantined_states(codec.states(head)).items()
    }
    if conn.ledger is not None:
        # Before the end is written: a sealed record of before that is put back later
        # must not run what people were told has ended.
        spent = [Attempt(approval_id, int(i), NEVER_AGAIN) for i in states]
        await conn.ledger.spend(spent, now_ms=now_ms)
    moved = {f"{i}:s": state for i, state in states.items()}
    since = dict.fromkeys((f"{i}:t" for i in states), str(now_ms))
    change: dict[str, object] = {
        "id": approval_id,
        # Compared as text with what is there, whatever that is.
        "rev": head.get("rev", b"").decode("utf-8", "replace"),
        "seen_ms": now_ms,
        "fields": {**moved, **since, **_set_aside(seals, approval_id, now_ms)},
        "states": states,
        # At 0: takes every timer out, or each would find the corrupt record again.
        "set": [(kind, 0) for kind in timing.TimerKind],
        "events": sealed_texts(conn, keys, [event] * is_first),
        "job": job.model_dump_json() if run_ref.thread and is_first else "",
        # No queues: who might have decided it is the corrupt part, maybe. It stays
        # listed until the last of its queue expires, and nobody can read it.
    }
    await CHANGE(
        conn,
        **tenant_keys(keys),
        records=record_keys(keys, approval_id, ref.agent, run_ref.thread),
        failed_ms=FAILED_MS,
        keep_ms=KEEP_MS,
        events="[]",
        count=1,
        changes=[to_json(change), ""],
    )
    return tenant, ref


def _set_aside(seals: RecordSeals, approval_id: str, now_ms: int) -> dict[str, str]:
    at = str(now_ms)
    seal = seals.of_moment(approval_id, QUARANTINED, at)
    return {QUARANTINED: at, QUARANTINE_SEAL: seal.hex()}


async def _mend_of(
    conn: Connection, keys: Keys, approval_id: str, ref: TurnRef
) -> None:
    """Write again of which run and turn a record is, if that is what was damaged.

    The script ends by it what the run and the turn keep: without it they would count
    the approval as open for ever.
    """
    # Believed only where the turn and the run themselves list the approval.
    run = keys.run(ref.run_ref)
    turn = keys.turn(digest.turn_key(tenant=keys.tenant, **ref.names))
    run_hash, turn_hash = (bytes.fromhex(key.rpartition(":")[2]) for key in (run, turn))
    mended: list[Argument] = []
    listed = await RunLists(conn).open_of_run(keys, ref.run_ref)
    if Listed(approval_id, ref.ns) in listed:
        mended += ["run", run_hash + ref.ns.encode()]
    verdicts = cast("bytes", await conn.command("GET", turn) or b"")
    if approval_id.encode() in verdicts.partition(b"\n")[0].split():
        mended += ["turn", turn_hash]
    if mended:
        await conn.command("HSET", keys.head(approval_id), *mended)
