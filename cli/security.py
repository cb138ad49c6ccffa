"""List security events: data in the store that Keyturn did not write."""

from __future__ import annotations

from typing import Annotated

import typer

from keyturn.cli import console
from keyturn.cli.console import option
from keyturn.cli.policy_inputs import parse_ms
from keyturn.cli.store_access import use_store
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.store.store import Store


def security(
    ctx: typer.Context,
    *,
    since: Annotated[str, option("TIME", "ISO 8601 with its zone.")] = "",
    json: console.AsJson = False,
) -> None:
    """List security events: forged, refused or stalled data.

    Examples:
      keyturn security                            every event in the audit log
      keyturn security --since 2026-07-01T00:00Z  from that time on
      keyturn security --json                     exit code 1 if there is any
    """
    since_ms = parse_ms(since, "--since") or 0

    async def listed(store: Store, tenant: str) -> list[Event]:
        found = security_events(store, tenant, since_ms=since_ms)
        return [event async for event in found]

    events = use_store(ctx, listed)
    console.listing(
        [_row(event) for event in events],
        json=json,
        nothing="Nothing was found.",
        is_bad=lambda _: True,
    )
    if events:
        raise typer.Exit(1)


def _row(event: Event) -> console.Row:
    found = {
        "at": console.utc(event.at_ms),
        "kind": event.reason,
        **event.data,
        "agent": event.agent,
        "thread": event.thread,
        "approval": event.approval,
    }
    return {key: value for key, value in found.items() if value}
