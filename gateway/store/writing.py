"""Write the next versions of approvals unless they changed since they were read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pydantic_core import to_json

from keyturn.gateway.approvals.executing import next_attempt, spent_by
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.store.agent_load import FAILED_MS
from keyturn.gateway.store.atomic_write import Loaded, Write, WriteMany
from keyturn.gateway.store.audit_seals import event_texts
from keyturn.gateway.store.connection import Connection, number, text
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.next_version import moves, record_keys, tenant_keys
from keyturn.gateway.store.record_seals import Stored
from keyturn.gateway.store.script import Script
from keyturn.gateway.store.spending import after_spending

CHANGE = Script("change")
FENCED_CHANGE = Script("change", is_fenced=True)


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
    after, stored, changes = (
        [one.approval for one in what.writes],
        list[Stored](),
        list[bytes](),
    )
    for one in what.writes:
        move = partial(moves, conn, keys, seen[one.approval.id], one)
        moved, next_stored = await aside(move, _texts(one))
        stored.append(next_stored)
        changes += [to_json(moved), next_stored.document]
    is_fenced = any(one.is_fenced for one in what.writes)
    reply = await (FENCED_CHANGE if is_fenced else CHANGE)(
        conn,
        **tenant_keys(keys),
        records=[
            key
            for one in after
            for key in record_keys(keys, one.id, one.agent, one.thread)
        ],
        failed_ms=FAILED_MS,
        keep_ms=KEEP_MS,
        events=event_texts(conn, keys, what.events) if what.events else "[]",
        count=len(stored),
        changes=changes,
    )
    if text(reply[0]) != "done":
        return []
    now_ms = number(reply[1])
    pairs = zip(after, stored, strict=True)
    return [Loaded(one, now_ms=now_ms, stored=each) for one, each in pairs]


def _texts(what: Write) -> list[str]:
    """Return the large texts in the document of a next version."""
    found: list[str] = []
    for item in what.approval.items:
        found += [item.requested, item.action]
        found += [one.payload for one in (item.result, item.late_result) if one]
    return found
