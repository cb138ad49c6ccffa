"""Set a corrupt approval aside, so that timers and threads go on."""

from __future__ import annotations

import json
from typing import cast

from twokey.gateway.approvals import ending, timing
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.wire import TurnRef
from twokey.gateway.store import codec, run_list
from twokey.gateway.store.agent_load import FAILED_MS
from twokey.gateway.store.atomic_write import CHANGE, script_keys
from twokey.gateway.store.audit_seals import event_texts
from twokey.gateway.store.connection import Connection, fields, milliseconds
from twokey.gateway.store.jobs import Job
from twokey.gateway.store.keys import KEEP_MS, Keys
from twokey.gateway.store.turn_opening import Listed


async def quarantine(conn: Connection, keys: Keys, approval_id: str) -> None:
    """End a corrupt approval: nothing in it is decided or run any more.

    What waits in it is withdrawn and leaves its windows, it has no deadline any more,
    it is announced, and its thread, if that much can be read, is brought back. An
    approval that was quarantined before is left as it is.
    """
    raw_head, pinned, time = await conn.transaction(
        ["HGETALL", keys.head(approval_id)],
        ["GET", keys.pinned(approval_id)],
        ["TIME"],
    )
    head, now_ms = fields(raw_head), milliseconds(time)
    # The sweep and a click may find the same corrupt record at once: it is announced,
    # and its thread brought back, once.
    is_first = "quarantined" not in head
    # Its keys exist for nobody, so what the script does with them changes nothing.
    nobody = ("", TurnRef(agent="", thread="", message_id=""))
    tenant, ref = codec.whose(cast("bytes", pinned or b"")) or nobody
    run_ref = ref.run_ref
    await _mend_of(conn, keys, approval_id, tenant, ref)
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
        **script_keys(keys, approval_id, tenant, ref.agent),
        rejected=keys.rejected(tenant, ref.agent, run_ref.thread),
        id=approval_id,
        # Compared as text with what is there, whatever that is.
        rev=head.get("rev", b"").decode("utf-8", "replace"),
        seen_ms=now_ms,
        before_ms=0,
        unfrozen="[]",
        fires="",
        fields=json.dumps({**moved, **since, "quarantined": str(now_ms)}),
        as_read="{}",
        states=json.dumps(states),
        uses="{}",
        # At 0: takes every timer out, or each would find the corrupt record again.
        set=json.dumps([(kind, 0) for kind in timing.TimerKind]),
        events=event_texts(conn, keys, [event] * is_first),
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
        kept="[]",
    )


async def _mend_of(
    conn: Connection, keys: Keys, approval_id: str, tenant: str, ref: TurnRef
) -> None:
    """Write again of which run and turn a record is, if that is what was damaged.

    The script ends by it what the run and the turn keep: without it they would count
    the approval, and its schemas, as open for ever.
    """
    # Believed only where the run itself lists the approval.
    listed = await run_list.open_of_run(conn, keys, tenant, ref.run_ref)
    if Listed(approval_id, ref.ns) not in listed:
        return
    run = keys.run(tenant, ref.run_ref)
    turn = keys.turn(digest.turn_key(tenant=tenant, **ref.names))
    run_hash, turn_hash = (bytes.fromhex(key.rpartition(":")[2]) for key in (run, turn))
    # A turn that has no key of its own is named in vain, which does no harm.
    of = ("run", run_hash + ref.ns.encode(), "turn", turn_hash)
    await conn.command("HSET", keys.head(approval_id), *of)
