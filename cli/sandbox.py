"""Run the sandbox (a local fake Slack) alone, for another bot or for tests."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from twokey.cli import console
from twokey.cli.examples import examples
from twokey.cli.one_sandbox import only_user
from twokey.gateway.errors import SettingsError
from twokey.sandbox.serve import serve

PORT = 8766

EXAMPLES = examples(
    ("twokey sandbox", "a Slack workspace with a web page, on this machine"),
    ("twokey sandbox --request-url http://127.0.0.1:3000/slack/events", "over HTTP"),
)


def sandbox(
    host: Annotated[str, typer.Option(help="Interface to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=console.LAST_PORT, help="Port; 0: any free."),
    ] = PORT,
    request_url: Annotated[
        str,
        typer.Option(metavar="URL", help="Deliver by signed HTTP; else Socket Mode."),
    ] = "",
    keep: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the workspace in this file."),
    ] = None,
) -> None:
    """Run a local Slack workspace that refuses what Slack refuses.

    It prints where its page is, and the settings of a bot: paste them into another
    terminal, and start 'twokey bot' or your own there.
    """
    how = partial(serve, request_url=request_url, state_path=keep, announce=typer.echo)
    try:
        # The sandbox itself refuses a folder.
        with nullcontext() if keep is None or keep.is_dir() else only_user(keep):
            asyncio.run(how(host, port))
    except OSError as error:
        # With a file name it is about the kept workspace, without one about the port.
        where = f"{error.filename!r}: " if error.filename else ""
        raise SettingsError(f"{where}{error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(str(error)) from error
