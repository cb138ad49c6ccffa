"""Context of a command: path of the settings file, and environment variables."""

from __future__ import annotations

import getpass
from contextlib import suppress
from pathlib import Path

import typer

from twokey.cli.console import read_text
from twokey.cli.global_options import GlobalOptions
from twokey.gateway.config import DEFAULT_FILE, Settings
from twokey.gateway.errors import SettingsError
from twokey.gateway.policy.load import LoadedPolicy, load_with_lines
from twokey.gateway.policy.rules import Policy


class CommandContext(GlobalOptions):
    """One run of ``twokey``: its options, and the files that they name."""

    def settings(self) -> Settings:
        """Read the settings.

        Raises:
            SettingsError: one sentence per problem.
        """
        return Settings.load(self.config, self.env)

    @property
    def settings_file(self) -> Path:
        """Return the file that the settings are read from, if it is there."""
        return self.config or DEFAULT_FILE

    def policy(self, file: Path | None = None) -> Policy:
        """Load a policy file, or the policy that the settings name.

        Raises:
            PolicyError: names the line of what is wrong.
            SettingsError: when it cannot be read.
        """
        return self.loaded_policy(file).policy

    def loaded_policy(self, file: Path | None = None) -> LoadedPolicy:
        """Load a policy like `policy`, with the document that knows its lines."""
        if file is not None:
            name = "<stdin>" if str(file) == "-" else str(file)
            is_split = False
            # The settings may be those of another place, or have mistakes of their own.
            with suppress(SettingsError):
                is_split = self.settings().split_by_agent
            text = read_text(file, "the policy")
            return load_with_lines(text, name, is_split=is_split)
        source = self.settings().policy
        return load_with_lines(
            source.read(),
            str(source.path),
            under=source.under,
            is_split=source.is_split,
        )


def command_context(ctx: typer.Context) -> CommandContext:
    """Return the context of a running command."""
    options = ctx.ensure_object(GlobalOptions)
    return CommandContext(options.env, options.config, options.debug)


def caller() -> str:
    """Return who types, for the audit log."""
    try:
        return f"cli/{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user may have no name
        return "cli"
