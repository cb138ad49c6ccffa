"""Call the Lua scripts that move jobs; see `gateway.store.scripts`."""

from __future__ import annotations

from gateway.store.connection import Connection, Reply
from gateway.store.script import Script

REQUEUE = Script("requeue")
PUT_BACK = Script("put_back")


async def requeue(
    conn: Connection, *, retry: str, jobs: str, limit: int
) -> list[Reply]:
    """Run requeue.lua."""
    return await REQUEUE.run(conn, [retry, jobs], [limit])


async def put_back(
    conn: Connection,
    *,
    jobs: str,
    retry: str,
    group: str,
    delivery: str,
    job: str,
    delay_ms: int,
) -> list[Reply]:
    """Run put_back.lua."""
    return await PUT_BACK.run(conn, [jobs, retry], [group, delivery, job, delay_ms])
