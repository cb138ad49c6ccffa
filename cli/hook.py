"""Answer the command hook of a coding agent."""

from __future__ import annotations

import os
import sys
import threading
from typing import Annotated

import typer

from keyturn.connect.codex_hook import ask
from keyturn.connect.coding_agents import TIMEOUT_S
from keyturn.gateway.failures import any_failure

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_BLOCKED = 2
"""The only exit code with which Codex blocks the call."""

_TOO_SLOW = (
    "This call did not run: the approval gateway is too slow. Try it again later, or "
    "tell the user.\n"
)


@group.callback()
def hook() -> None:
    """Answer the command hook of a coding agent."""


@group.command()
def codex(
    *,
    url: Annotated[
        str, typer.Option(envvar="KEYTURN_GATEWAY", metavar="URL", help="The gateway.")
    ],
    api_key: Annotated[
        str,
        typer.Option(envvar="KEYTURN_API_KEY", metavar="KEY", help="Its API key."),
    ],
) -> None:
    """Ask the gateway about the call on stdin; exit with 2 if there is no answer.

    Examples:
      keyturn hook codex  as the hook of Codex: see 'keyturn hooks codex'
    """
    # The client's timeout is for each read; many slow reads would outlast Codex.
    timer = threading.Timer(TIMEOUT_S, _end)
    timer.daemon = True
    timer.start()
    try:
        typer.echo(ask(sys.stdin.buffer.read(), url, api_key))
    except any_failure() as error:
        typer.echo(str(error) or type(error).__name__, err=True)
        raise typer.Exit(_BLOCKED) from error
    finally:
        timer.cancel()


def _end() -> None:
    os.write(2, _TOO_SLOW.encode())
    os._exit(_BLOCKED)
