"""Quarantine a corrupt approval, so that timers and threads continue."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import cast

from pydantic_core import to_json

from keyturn.gateway.approvals import ending, timing
from keyturn.gateway.approvals.events import (
    Event,
    EventName,
    SecurityEvent,
    SecurityKind,
)
from keyturn.gateway.approvals.executing import NEVER_AGAIN, Attempt
from keyturn.gateway.errors import ForgedRecord, StoreUnavailable
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.wire import TurnRef
from keyturn.gateway.store.connection.connection import Connection, fields, milliseconds
from keyturn.gateway.store.keys import Keys, hash_of
from keyturn.gateway.store.records import codec
from keyturn.gateway.store.records.atomic_write import run_change
from keyturn.gateway.store.records.codec import (
    QUARANTINE_SEAL,
    QUARANTINED,
    WRONG_SEAL,
    RecordSeals,
)
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.runs.run_list import Listed, RunLists
from keyturn.gateway.store.sealing.encryption import decrypted_document
from keyturn.gateway.store.sealing.event_seals import sealed_texts
from keyturn.gateway.store.sealing.sealing import Repository


class ForgedRecords(Repository):
    """Reports forged records, and quarantines them."""

    @asynccontextmanager
    async def noticed(self, keys: Keys) -> AsyncGenerator[None]:
        """Quarantine a forged record found in the block, then raise the error again.

        Raises:
            ForgedRecord: the error of the block.
            StoreUnavailable: the seal may be valid under a secret unknown here.
        """
        try:
            yield
        except ForgedRecord as error:
            if error.why == WRONG_SEAL:
                await self._sealing.ensure_known(keys, approval=error.approval)
            # The record is refused even if the quarantine cannot be written.
            with suppress(StoreUnavailable):
                tenant, ref = await quarantine(
                    self._conn, keys, error.approval, why=error.why
                )
                found = _event(error, tenant, ref)
                await self._sealing.security.report(keys, found)
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
    """End a corrupt approval: none of its items can be decided or run any more.

    Pending items are withdrawn and leave their windows, and deadlines are removed. The
    end is announced, and the thread is resumed if its name is legible. A record that
    was quarantined before stays unchanged. ``why`` is the reason in words. Returns the
    tenant and the turn, as far as they are legible.
    """
    raw_head, document, time = await conn.transaction(
        ["HGETALL", keys.head(approval_id)],
        ["GET", keys.document(approval_id)],
        ["TIME"],
    )
    head, now_ms = fields(raw_head), milliseconds(time)
    # The sweep and a click may find the record at once; announce it and resume the
    # thread only once.
    seals = RecordSeals(conn)
    is_first = not seals.is_quarantined(approval_id, head)
    # Placeholder names match no existing keys, so the script changes no other data.
    tenant, ref = "", TurnRef(agent="", thread="", message_id="")
    with suppress(ForgedRecord):
        plain = decrypted_document(
            conn, approval_id, head, cast("bytes", document or b"")
        )
        tenant, ref = codec.whose(plain) or (tenant, ref)
    run_ref = ref.run_ref
    mended: dict[str, str] = {}
    listed = await RunLists(conn).open_of_run(keys, run_ref)
    if Listed(approval_id, ref.ns) in listed:
        # The head may have lost the names of its run and turn, and both would count
        # the approval as open forever. The run lists it, so the document names it.
        turn = keys.turn(digest.turn_key(tenant=keys.tenant, **ref.names))
        mended["run"] = hash_of(keys.run(run_ref)) + ref.ns.encode().hex()
        mended["turn"] = hash_of(turn)
    event = Event(
        name=EventName.RECORD_QUARANTINED,
        tenant=tenant,
        agent=run_ref.agent,
        thread=run_ref.thread,
        approval=approval_id,
        reason=why,
    )
    job = Job.to_resume(tenant, run_ref.agent, run_ref.thread)
    at = str(now_ms)
    mark = {
        QUARANTINED: at,
        QUARANTINE_SEAL: seals.of_moment(approval_id, QUARANTINED, at).hex(),
    }
    states = {
        str(i): s for i, s in ending.quarantined_states(codec.states(head)).items()
    }
    if conn.ledger is not None:
        # Before the record ends: a sealed earlier version, restored later, must not run
        # calls that were announced as ended.
        spent = [Attempt(approval_id, int(i), NEVER_AGAIN) for i in states]
        await conn.ledger.spend(spent, now_ms=now_ms)
    moved = {f"{i}:s": state for i, state in states.items()}
    since = dict.fromkeys((f"{i}:t" for i in states), at)
    change: dict[str, object] = {
        "id": approval_id,
        # Compared as text with the stored value, even if that is malformed.
        "rev": head.get("rev", b"").decode("utf-8", "replace"),
        "seen_ms": now_ms,
        "fields": {**moved, **since, **mark, **mended},
        "states": states,
        # Score 0 removes every timer; otherwise each would find the record again.
        "set": [(kind, 0) for kind in timing.TimerKind],
        "events": sealed_texts(conn, keys, [event] * is_first),
        "job": job.model_dump_json() if run_ref.thread and is_first else "",
        # No queues: the names of the reviewers may be the corrupt part. The approval
        # stays in its queues until they expire, but is unreadable.
    }
    place = approval_id, ref.agent, run_ref.thread
    await run_change(conn, keys, [place], [to_json(change), b""])
    return tenant, ref
