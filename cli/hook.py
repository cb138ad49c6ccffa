"""Answer the command hook of a coding agent."""

from __future__ import annotations

import os

import typer

from keyturn.connect import codex_hook

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@group.callback()
def hook() -> None:
    """Answer the command hook of a coding agent."""


@group.command()
def codex() -> None:
    """Ask the gateway about the call on stdin; exit with 2 if there is no answer.

    KEYTURN_GATEWAY is the gateway's URL, KEYTURN_API_KEY its API key.

    Examples:
      keyturn hook codex  as the hook of Codex: see 'keyturn hooks codex'
    """
    raise typer.Exit(codex_hook.run(os.environ))
