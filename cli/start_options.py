"""Options, examples and logging that `run`, `gateway` and `bot` share."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import typer

from twokey.cli.command_context import CommandContext
from twokey.cli.examples import examples
from twokey.gateway.config import Settings
from twokey.gateway.logs import write_logs

EXAMPLES = examples(
    ("twokey run", "gateway, agents and bot in one process"),
    ("twokey run --sandbox", "the same beside a local Slack with a web page"),
    ("twokey gateway", "only the agents' side; start as many as you like"),
    ("twokey bot", "only the Slack side; two or more share the clicks"),
    ("twokey bot --workers 4", "the same in five processes of this machine"),
)

InsecureDev = Annotated[
    bool,
    typer.Option(
        "--insecure-dev",
        help="Accept a store that would lose acknowledged decisions.",
    ),
]


def configure_logs(
    command: CommandContext, settings: Settings, *, insecure_dev: bool
) -> None:
    """Write logs; the words of an agent's errors only where a developer reads them."""
    host = urlsplit(settings.slack.api_url).hostname
    # By name and not by resolving it: a name server must not decide whether arguments
    # get into a log.
    is_sandbox = host in {"127.0.0.1", "::1", "localhost"}
    shows_errors = command.debug or insecure_dev or is_sandbox
    write_logs(settings.log, shows_errors=shows_errors)
