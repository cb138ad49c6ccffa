"""Write to the store if what was read is unchanged, together with events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.store.connection.connection import Argument, Connection, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.event_seals import sealed_texts

Check = tuple[Sequence[Argument], Argument]
"""A command that reads one value, and the reply that was read; "" for none."""

WRITE_IF = Script("write_if")
FENCED_WRITE_IF = Script("write_if", is_fenced=True)


async def write_if(
    conn: Connection,
    keys: Keys,
    checks: Sequence[Check],
    *commands: Sequence[Argument],
    outbox: Iterable[Event] = (),
    audit: Iterable[Event] = (),
    is_fenced: bool = False,
) -> bool:
    """Run commands in one step; False, and nothing is written, if a value has changed.

    Args:
        conn: connection to the store.
        keys: keys of the tenant, which has all keys of the commands.
        checks: values to compare; see `Check`.
        commands: commands to run.
        outbox: events for the outbox, written in the same step.
        audit: events for the audit log.
        is_fenced: True if it requires the lease of the current context.

    Raises:
        StoreUnavailable: when the result is unknown.
        LeaseLost: another process has the lease now; nothing was written.
    """
    words: list[Argument] = []
    for read, expected in checks:
        words += [len(read), *read, expected]
    for command in commands:
        words += [len(command), *command]
    script = FENCED_WRITE_IF if is_fenced else WRITE_IF
    reply = await script(
        conn,
        outbox=keys.outbox,
        audit=keys.audit,
        outbox_events=sealed_texts(conn, keys, outbox),
        audit_events=sealed_texts(conn, keys, audit),
        checks=len(checks),
        writes=len(commands),
        words=words,
    )
    return text(reply[0]) == "done"
