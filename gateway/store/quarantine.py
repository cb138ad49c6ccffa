"""Set a corrupt approval aside, so that timers and threads go on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import cast

from pydantic_core import to_json

from twokey.gateway.approvals import ending, timing
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.security import SecurityEvent, SecurityKind
from twokey.gateway.errors import ForgedRecord, StoreUnavailable
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.wire import TurnRef
from twokey.gateway.store import codec, run_list
from twokey.gateway.store.agent_load import FAILED_MS
from twokey.gateway.store.audit_seals import sealed_texts
from twokey.gateway.store.connection import fields, milliseconds
from twokey.gateway.store.jobs import Job
from twokey.gateway.store.keys import KEEP_MS, Keys
from twokey.gateway.store.listed_members import ListedMembers
from twokey.gateway.store.next_version import CHANGE, script_keys
from twokey.gateway.store.record_encryption import DATA_KEY
from twokey.gateway.store.record_seals import (
    QUARANTINE_SEAL,
    QUARANTINED,
    WRONG_SEAL,
    RecordSeals,
)
from twokey.gateway.store.secret_check import ensure_known
from twokey.gateway.store.security_events import SecurityEvents
from twokey.gateway.store.turn_opening import Listed


class ForgedRecords:
    """Reports forged records, and sets them aside.

    Args:
        members: reads lists of the store, whose members may be corrupt.
        security: reports what was noticed.
    """

    def __init__(self, members: ListedMembers, security: SecurityEvents) -> None:
        self._members = members
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
                    self._members.conn, self._security, keys, approval=error.approval
                )
            # Refused in any case, also where none of this is written.
            with suppress(StoreUnavailable):
                tenant, ref = await quarantine(
                    self._members, keys, error.approval, why=error.why
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
    members: ListedMembers, keys: Keys, approval_id: str, *, why: str = ""
) -> tuple[str, TurnRef]:
    """End a corrupt approval: nothing in it is decided or run any more.

    What waits in it is withdrawn and leaves its windows, it has no deadline any more,
    it is announced, and its thread, if that much can be read, is brought back. An
    approval that was quarantined before is left as it is. ``why`` says in words what
    was found. Returns the tenant and the turn that it names, if it does.
    """
    conn = members.conn
    raw_head, pinned, time = await conn.transaction(
        ["HGETALL", keys.head(approval_id)],
        ["GET", keys.pinned(approval_id)],
        ["TIME"],
    )
    head, now_ms = fields(raw_head), milliseconds(time)
    # The sweep and a click may find the same corrupt record at once: it is announced,
    # and its thread brought back, once.
    seals = RecordSeals(conn)
    is_first = not seals.is_quarantined(approval_id, head)
    # Its keys exist for nobody, so what the script does with them changes nothing.
    nobody = ("", TurnRef(agent="", thread="", message_id=""))
    kept = seals.encryption.pinned(approval_id, head, cast("bytes", pinned or b""))
    tenant, ref = codec.whose(kept) or nobody
    run_ref = ref.run_ref
    await _mend_of(members, keys, approval_id, tenant, ref)
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
    moved = {f"{i}:s": state for i, state in states.items()}
    since = dict.fromkeys((f"{i}:t" for i in states), str(now_ms))
    change: dict[str, object] = {
        "id": approval_id,
        # Compared as text with what is there, whatever that is.
        "rev": head.get("rev", b"").decode("utf-8", "replace"),
        "seen_ms": now_ms,
        "fields": {
            **moved,
            **since,
            **_set_aside(seals, approval_id, now_ms),
            # Also where it is in doubt what wrote it: an older version must not read
            # what this one wrote into it.
            "format": codec.format_of(is_encrypted=DATA_KEY in head),
        },
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
        **script_keys(keys, approval_id, tenant, ref.agent),
        rejected=keys.rejected(tenant, ref.agent, run_ref.thread),
        change=to_json(change),
        failed_ms=FAILED_MS,
        keep_ms=KEEP_MS,
        # Nobody waits for its job.
        thread=(),
        taker="",
    )
    return tenant, ref


def _set_aside(seals: RecordSeals, approval_id: str, now_ms: int) -> dict[str, str]:
    at = str(now_ms)
    seal = seals.of_moment(approval_id, QUARANTINED, at)
    return {QUARANTINED: at, QUARANTINE_SEAL: seal.hex()}


async def _mend_of(
    members: ListedMembers, keys: Keys, approval_id: str, tenant: str, ref: TurnRef
) -> None:
    """Write again of which run and turn a record is, if that is what was damaged.

    The script ends by it what the run and the turn keep: without it they would count
    the approval, and its schemas, as open for ever.
    """
    # Believed only where the run itself lists the approval.
    listed = await run_list.open_of_run(members, keys, tenant, ref.run_ref)
    if Listed(approval_id, ref.ns) not in listed:
        return
    run = keys.run(tenant, ref.run_ref)
    turn = keys.turn(digest.turn_key(tenant=tenant, **ref.names))
    run_hash, turn_hash = (bytes.fromhex(key.rpartition(":")[2]) for key in (run, turn))
    # A turn that has no key of its own is named in vain, which does no harm.
    of = ("run", run_hash + ref.ns.encode(), "turn", turn_hash)
    await members.conn.command("HSET", keys.head(approval_id), *of)
