"""Context of a command: settings file, environment, and how its process starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from keyturn.cli.console import flag, read_text
from keyturn.cli.global_options import GlobalOptions
from keyturn.gateway.config import DEFAULT_FILE, Settings
from keyturn.gateway.documents import Document
from keyturn.gateway.logs import write_logs
from keyturn.gateway.policy.load import load_with_lines
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.secret_variables import with_files

InsecureDev = Annotated[
    bool,
    flag("--insecure-dev", "Accept a store that would lose acknowledged decisions."),
]


class CommandContext(GlobalOptions):
    """One run of ``keyturn``: its options and the files they name."""

    def settings(self) -> Settings:
        """Read the settings.

        Raises:
            SettingsError: one sentence per problem.
        """
        return Settings.load(self.config, self.env)

    @property
    def settings_file(self) -> Path:
        """Return the path of the settings file, which may not exist."""
        return self.config or DEFAULT_FILE

    def policy(self, file: Path | None = None) -> Policy:
        """Load a policy file, or by default the policy of the settings.

        Raises:
            PolicyError: names the line of each mistake.
            SettingsError: when it cannot be read.
        """
        return self.loaded_policy(file)[0]

    def loaded_policy(self, file: Path | None = None) -> tuple[Policy, Document]:
        """Load a policy like `policy`, with the document that has its line numbers."""
        if file is not None:
            name = "<stdin>" if str(file) == "-" else str(file)
            return load_with_lines(read_text(file, "the policy"), name)
        source = self.settings().policy
        return load_with_lines(source.read(), str(source.path), under=source.under)


def command_context(ctx: typer.Context) -> CommandContext:
    """Return the context of a running command."""
    options = ctx.ensure_object(GlobalOptions)
    if not options.debug:
        # Without a handler, Python prints warnings between the lines of the output.
        logging.getLogger().addHandler(logging.NullHandler())
    return CommandContext(with_files(options.env), options.config, options.debug)


def configure_logs(
    command: CommandContext, settings: Settings, *, insecure_dev: bool
) -> None:
    """Configure logs; texts of agents' errors appear only in a developer's log."""
    host = urlsplit(settings.slack.api_url).hostname
    # By name, without resolving it: a name server must not decide whether arguments
    # appear in a log.
    is_sandbox = host in {"127.0.0.1", "::1", "localhost"}
    shows_errors = command.debug or insecure_dev or is_sandbox
    write_logs(settings.log, shows_errors=shows_errors)
