"""Export the audit log as JSON Lines."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from twokey.cli.command_context import command_context
from twokey.cli.examples import examples
from twokey.cli.policy_inputs import parse_time
from twokey.cli.store_access import use_store
from twokey.gateway.service.exporting import Exporter
from twokey.gateway.store.store import Store

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@group.callback()
def audit() -> None:
    """Read the audit log."""


@group.command(
    epilog=examples(
        ("twokey audit export > audit.jsonl", "everything, one JSON object a line"),
        ("… --since 2026-07-01T00:00Z", "from that time on"),
        ("twokey policy replay new.yml --audit audit.jsonl", "evaluate it by a policy"),
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
    since_ms, until_ms = _ms(since, "--since") or 0, _ms(until, "--until")

    async def printed(store: Store, tenant: str) -> bool:
        exporter = Exporter(store, tenant=tenant, has_arguments=arguments)
        is_empty = True
        async for row in exporter.rows(since_ms=since_ms, until_ms=until_ms):
            # ASCII only: arguments could steer the terminal, or not fit its encoding.
            typer.echo(json.dumps(row))
            is_empty = False
        return not is_empty

    if not use_store(command_context(ctx), printed):
        # To stderr: the file that stdout goes to holds rows and nothing else.
        typer.echo("The audit log has nothing in this time.", err=True)


def _ms(text: str, option: str) -> int | None:
    return int(parse_time(text, option).timestamp() * 1000) if text else None
