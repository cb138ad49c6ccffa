"""Put aside what nobody can read, so that it stops neither the clock nor its thread."""

from __future__ import annotations

import json

from gateway.approvals.events import Event, EventName
from gateway.approvals.record import Home
from gateway.store import codec, scripts
from gateway.store.connection import Connection, fields, text
from gateway.store.jobs import Job, JobKind
from gateway.store.keys import RETENTION, Keys
from gateway.store.timers import TimerKind

_KEEP_MS = int(RETENTION.total_seconds() * 1000)


async def put_aside(conn: Connection, keys: Keys, approval_id: str) -> bool:
    """End an approval that nobody can read; False when another replica was faster.

    What waits in it is withdrawn and leaves its windows, it has no deadline any more,
    it is announced, and its thread, if that much can be read, is brought back.
    """
    blobs = fields(await conn.command("HGETALL", keys.blobs(approval_id)))
    nobody = ("", "", Home(agent="", thread=""))
    tenant, agent, home = codec.whose(blobs) or nobody
    event = Event(
        name=EventName.RECORD_UNREADABLE,
        tenant=tenant,
        agent=home.agent,
        thread=home.thread,
        approval=approval_id,
    )
    job = Job(kind=JobKind.RESUME, tenant=tenant, agent=home.agent, thread=home.thread)
    reply = await scripts.PUT_ASIDE(
        conn,
        head=keys.head(approval_id),
        blobs=keys.blobs(approval_id),
        expiry=keys.expiry,
        timers=keys.timers,
        outbox=keys.outbox,
        audit=keys.audit,
        jobs=keys.jobs,
        waiting=keys.waiting(tenant, agent),
        id=approval_id,
        kinds=json.dumps(list(TimerKind)),
        event=event.model_dump_json(),
        job=job.model_dump_json() if home.thread else "",
        keep_ms=_KEEP_MS,
    )
    return text(reply[0]) == "done"
