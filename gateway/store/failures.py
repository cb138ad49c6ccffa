"""Count failed calls of an agent that ran unasked."""

from __future__ import annotations

import json

from twokey.gateway.approvals.events import Event
from twokey.gateway.store.attention import FAILED_MS
from twokey.gateway.store.connection import Connection, text
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.script import Script

FAIL = Script("fail")


async def count_failure(conn: Connection, keys: Keys, name: str, event: Event) -> bool:
    """Count a failed call of an agent; False when it was counted before.

    Args:
        conn: to the store.
        keys: of the tenant's shard.
        name: the same for the same call.
        event: what is announced.
    """
    reply = await FAIL(
        conn,
        failures=keys.failures(event.tenant, event.agent),
        outbox=keys.outbox,
        audit=keys.audit,
        failed=name,
        failed_ms=FAILED_MS,
        events=json.dumps([event.model_dump_json()]),
    )
    return text(reply[0]) == "done"
