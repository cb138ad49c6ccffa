"""Print or check the Slack app manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from keyturn.bot import manifest as slack_app
from keyturn.cli import console
from keyturn.cli.command_context import command_context
from keyturn.cli.console import flag, option
from keyturn.gateway.documents import parse_yaml
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.strict_json import JsonObject


def manifest(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="With --check: the file to check.")
    ] = None,
    http: Annotated[str, option("URL", "Public https:// address of the bot.")] = "",
    *,
    json: console.AsJson = False,
    link: Annotated[bool, flag("--link", "Print the link that makes the app.")] = False,
    distribute: Annotated[
        bool, flag("--distribute", "With --http: for an app that workspaces install.")
    ] = False,
    check: Annotated[bool, flag("--check", "Check instead of printing.")] = False,
) -> None:
    """Print the manifest of the Slack app, or check one.

    Examples:
      keyturn manifest --link                    open Slack's page for it
      keyturn manifest > manifest.yml            Socket Mode: needs no address
      keyturn manifest --http https://x.example  Slack calls this address
      keyturn manifest --http https://x.example --distribute
                                                 several workspaces install it
      keyturn manifest --check manifest.yml      does this file suit the bot?
    """
    if file is not None and not check:
        raise SettingsError(f"Only --check reads {str(file)!r}; add --check.")
    command = command_context(ctx).settings().slack.command
    data = slack_app.render(http, command=command, distribute=distribute)
    if not check:
        typer.echo(_shown(data, as_json=json, as_link=link), nl=False)
        return
    problems = slack_app.check_manifest(
        _parsed(file) if file else data, command=command
    )
    if problems:
        lines = "".join(f"\n    {problem}" for problem in problems)
        raise SettingsError(f"{file} does not fit:{lines}")
    console.good(f"{file or 'The manifest'} suits the bot.")


def _shown(data: JsonObject, *, as_json: bool, as_link: bool) -> str:
    if as_link:
        return slack_app.install_link(data) + "\n"
    return slack_app.as_json(data) if as_json else slack_app.as_yaml(data)


def _parsed(file: Path) -> JsonValue:
    text = console.read_text(file, "the manifest")
    # JSON is a subset of YAML, so the YAML parser reads both.
    return parse_yaml(text, str(file)).value
