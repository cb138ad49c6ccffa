"""Make, list and revoke API keys for agents in other processes.

With a key, a program can propose calls of its agents, wait for decisions, and run
approved calls over the HTTP API ('api' in the settings). No key can approve calls: only
people can.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from keyturn.cli import console
from keyturn.cli.command_context import command_context
from keyturn.cli.console import AsJson, By, argument, option
from keyturn.cli.policy_inputs import ensure_spelled
from keyturn.cli.store_access import SANDBOX_FOLDER, has_sandbox, is_there, use_service
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.http_api import Scope
from keyturn.gateway.setting_forms import is_name, parse_duration
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.gateway.trust.api_keys import ApiKey

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_LONGEST = timedelta(days=400)
_MOST_NAME = 80


@group.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="A name for people, such as its use.")],
    *,
    agent: Annotated[
        list[str],
        typer.Option(help="An agent that may use it; '*' for all. Repeatable."),
    ],
    tool: Annotated[
        list[str] | None,
        typer.Option(help="A tool whose calls it may propose and run; default: all."),
    ] = None,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(
            help="submit: propose calls; read: read their state; execute: run approved "
            "calls. Default: all three."
        ),
    ] = None,
    expires: Annotated[
        str, option("TIME", "When it ends: 12h or 90d, 400d at most.")
    ] = "90d",
    json: AsJson = False,
    by: By = "",
) -> None:
    """Make a key and print it, once: only a keyed hash of it is stored.

    Give it to the agent's process as a secret (KEYTURN_API_KEY). To replace a key, make
    a new one, switch the process over, then revoke the old one.

    Examples:
      keyturn api-keys create billing-prod --agent billing   for one agent
      … --agent billing --agent support --expires 30d        two agents, 30 days
      … --tool look_up_order --scope submit --scope execute  only that tool
      … --agent billing --json                               print JSON
    """
    lives = _life(expires)
    _check_names(name, *agent, *(tool or ()))
    settings = command_context(ctx).settings()
    hint = (
        "For 'keyturn run --sandbox', repeat the command with "
        f"KEYTURN_DATA_DIR={settings.data_dir / SANDBOX_FOLDER}"
    )
    if has_sandbox(settings) and not is_there(settings):
        raise SettingsError(
            f"No key was made: the only store here is that of a sandbox. {hint}. For "
            "another gateway, start 'keyturn run' first."
        )
    ensure_spelled(command_context(ctx), tools=tool or (), agents=agent)

    tools, scopes = tool or ("*",), scope or tuple(Scope)
    may = {"agents": agent, "tools": tools, "scopes": scopes}
    # A key may be made before the first start.
    new = use_service(
        ctx,
        ApiKeyStore,
        lambda keys: keys.create(by, lives, name=name, **may),
        makes=True,
    )
    if json:
        console.as_json({**_row(new.kept), "key": new.text})
        return
    console.listing([_row(new.kept)], json=False, nothing="")
    if has_sandbox(settings):
        console.note(f"A gateway in a sandbox refuses this key. {hint}.")
    console.note("This is the key. It is shown only once:")
    typer.echo(new.text)


@group.command("list")
def listed(ctx: typer.Context, *, json: AsJson = False) -> None:
    """List the keys, oldest first; the keys themselves cannot be printed.

    Examples:
      keyturn api-keys list         every key, with its rights and its end
      keyturn api-keys list --json  the same for a machine
    """

    async def read(
        keys: ApiKeyStore,
    ) -> tuple[tuple[ApiKey, ...], tuple[str, ...], str]:
        return *await keys.all(), keys.seals.id

    found, refused, seals = use_service(ctx, ApiKeyStore, read)
    rows = [{**_row(key), "secret_in_use": key.seals == seals} for key in found]
    forged: list[console.Row] = [{"id": one, "forged": True} for one in refused]
    console.listing(
        [*rows, *forged],
        json=json,
        nothing="There is no API key; 'keyturn api-keys create' makes one.",
        is_bad=lambda row: not row.get("secret_in_use") and not row.get("revoked_at"),
    )
    if not json and any(key.seals != seals and not key.revoked_at for key in found):
        console.note(
            "A key that does not have secret_in_use=True ends with an earlier "
            "KEYTURN_SECRET: make another key, then revoke this one."
        )
    if not json and refused:
        console.note(
            "A key with forged=True may also be of a secret that is no longer "
            "configured; it is refused. 'keyturn api-keys revoke' removes it."
        )


@group.command()
def revoke(
    ctx: typer.Context,
    key: Annotated[str, argument("ID", "From 'keyturn api-keys list'.")],
    *,
    by: By = "",
) -> None:
    """End a key: every gateway refuses it at once.

    The agent's earlier calls stay as they are: people can still decide them.

    Examples:
      keyturn api-keys revoke 3f9a0c77d1e2b845  it ends at once
    """
    # A user may also paste the whole key.
    given = key.removeprefix("tk_").partition("_")[0]

    found = use_service(ctx, ApiKeyStore, lambda keys: keys.revoke(given, by))
    if found is None:
        raise SettingsError(
            f"There is no active API key {given!r}; 'keyturn api-keys list' shows the "
            "existing ones."
        )
    if found == "removed":
        console.good(f"{console.printable(given)} was removed; it was refused anyway.")
        return
    console.good(f"The key {found.id} ({console.printable(found.name)}) was revoked.")


def _life(text: str) -> timedelta:
    try:
        return parse_duration(text, _LONGEST)
    except ValueError as error:
        raise SettingsError(f"--expires: {error}") from error


def _check_names(*names: str) -> None:
    for one in names:
        if not (is_name(one) and len(one) <= _MOST_NAME):
            raise SettingsError(
                f"{one!r} is not a name; write 1 to {_MOST_NAME} printable characters, "
                "without surrounding spaces."
            )


def _row(key: ApiKey) -> console.Row:
    return {
        "id": key.id,
        "name": key.name,
        "agents": [*sorted(key.agents)],
        "tools": [*sorted(key.tools)],
        "scopes": [*sorted(key.scopes)],
        "created_at": key.created_at.isoformat(),
        "created_by": key.created_by,
        "expires_at": key.expires_at.isoformat(),
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }
