"""Read the audit log."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from twokey.cli import console
from twokey.cli.policy_facts import moment
from twokey.cli.session import Session, session_of
from twokey.gateway.service.exporting import Exporter
from twokey.gateway.store.serving import open_store

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@group.callback()
def audit() -> None:
    """Read the audit log."""


@group.command(
    epilog=console.examples(
        ("twokey audit export > audit.jsonl", "everything, one JSON object a line"),
        ("… --since 2026-07-01T00:00Z", "from that time on"),
        ("twokey policy replay new.yml --audit audit.jsonl", "judge it by a policy"),
    )
)
def export(
    ctx: typer.Context,
    *,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="ISO 8601 with its zone.")
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="What happened before this time.")
    ] = "",
    arguments: Annotated[
        bool,
        typer.Option(help="Add the arguments that are still kept, as cards show them."),
    ] = True,
) -> None:
    """Print the audit log, one JSON object a line, oldest first."""
    asyncio.run(
        _export(
            session_of(ctx),
            since_ms=_ms(since, "--since") or 0,
            until_ms=_ms(until, "--until"),
            has_arguments=arguments,
        )
    )


def add_to(app: typer.Typer) -> None:
    """Add what is in here to the command ``twokey``."""
    app.add_typer(group, name="audit", help=__doc__)


async def _export(
    session: Session, *, since_ms: int, until_ms: int | None, has_arguments: bool
) -> None:
    settings = session.settings()
    url = settings.redis_url.get_secret_value() if settings.redis_url else None
    # It only reads, so a store that could lose what it acknowledges will do.
    async with open_store(url, settings.data_dir, insecure_dev=True) as store:
        exporter = Exporter(store, tenant=settings.tenant, has_arguments=has_arguments)
        is_empty = True
        async for row in exporter.rows(since_ms=since_ms, until_ms=until_ms):
            # ASCII only: arguments could steer the terminal, or not fit its encoding.
            typer.echo(json.dumps(row))
            is_empty = False
    if is_empty:
        typer.echo("The audit log has nothing in this time.", err=True)


def _ms(text: str, option: str) -> int | None:
    return int(moment(text, option).timestamp() * 1000) if text else None
