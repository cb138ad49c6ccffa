"""List readers of the outbox, and drop a reader that is gone.

The outbox keeps an event until every reader (the bot, and each webhook target) has
acknowledged it. It grows while a reader is offline.
"""

from __future__ import annotations

from typing import Annotated

import typer

from keyturn.cli import console
from keyturn.cli.console import AsJson, argument
from keyturn.cli.store_access import use_store
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.store.events.outbox import (
    Backlog,
    ReaderState,
    backlog,
    drop_reader,
    reader_states,
)
from keyturn.gateway.store.store import Store

IN_USE_MS = 60_000
"""A reader that a process used within this time is in use."""

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@group.command("list")
def listed(ctx: typer.Context, *, json: AsJson = False) -> None:
    """List the readers, with the number of unacknowledged events.

    Examples:
      keyturn outbox list         readers, with their backlog and last read
      keyturn outbox list --json  the same for a machine
    """
    outbox, readers = use_store(ctx, _everything)
    rows: list[console.Row] = [
        {"reader": one.name, "unread": one.unread, "idle_ms": one.idle_ms}
        for one in readers
    ]
    console.listing(rows, json=json, nothing="Nobody reads the outbox.")
    if outbox.problem and not json:
        console.bad(outbox.problem)


@group.command()
def drop(
    ctx: typer.Context,
    reader: Annotated[str, argument("READER", "From 'keyturn outbox list'.")],
) -> None:
    """Stop keeping events for a reader that is gone for good.

    No card is lost: a bot that comes back compares every approval with its card. Thread
    messages about events in between are not posted. A reader that a process used in the
    last minute is not dropped; stop it first.

    Examples:
      keyturn outbox drop slack:old-tenant  stop keeping events for it
    """
    use_store(ctx, lambda store, tenant: _drop(store, tenant, reader))
    console.good(f"{reader} is dropped; the next sweep trims the outbox.")


async def _everything(store: Store, tenant: str) -> tuple[Backlog, list[ReaderState]]:
    keys = store.keys_of_tenant(tenant)
    found = await reader_states(store.conn, keys)
    by_name = sorted(found, key=lambda one: one.name)
    return await backlog(store.conn, keys), by_name


async def _drop(store: Store, tenant: str, reader: str) -> None:
    keys = store.keys_of_tenant(tenant)
    found = {one.name: one for one in await reader_states(store.conn, keys)}
    if reader not in found:
        names = ", ".join(found) or "none"
        raise SettingsError(f"There is no reader {reader!r}; there are: {names}.")
    idle_ms = found[reader].idle_ms
    if idle_ms is not None and idle_ms < IN_USE_MS:
        raise SettingsError(
            f"A process read as {reader!r} {idle_ms // 1000} s ago; stop it first."
        )
    await drop_reader(store.conn, keys, reader)
