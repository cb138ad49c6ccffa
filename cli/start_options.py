"""Options, examples and logging that `run`, `gateway` and `bot` share."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import typer

from keyturn.cli.command_context import CommandContext
from keyturn.cli.global_options import examples
from keyturn.gateway.config import Settings
from keyturn.gateway.logs import write_logs

EXAMPLES = examples(
    ("keyturn run", "gateway, agents and bot in one process"),
    ("keyturn run --sandbox", "the same beside a local Slack with a web page"),
    ("keyturn gateway", "only the agents' side; start as many as you like"),
    ("keyturn bot", "only the Slack side; two or more share the clicks"),
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
