"""Run the local stand-in for Slack by itself, for your own bot or your own tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from bot.sandbox.serve import serve
from gateway.commands import console

PORT = 8766

EXAMPLES = console.examples(
    ("twokey sandbox", "a Slack workspace with a web page, on this machine"),
    ("twokey sandbox --request-url http://127.0.0.1:3000/slack/events", "over HTTP"),
)


def sandbox(
    host: Annotated[str, typer.Option(help="Interface to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any free.")] = PORT,
    request_url: Annotated[
        str,
        typer.Option(metavar="URL", help="Deliver by signed HTTP; else Socket Mode."),
    ] = "",
    keep: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the workspace in this file."),
    ] = None,
) -> None:
    """Run a local Slack workspace that refuses what Slack refuses."""
    asyncio.run(
        serve(host, port, request_url=request_url, state_path=keep, announce=typer.echo)
    )
