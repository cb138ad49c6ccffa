"""Entry point of the command ``keyturn``: errors are printed as one sentence.

A new command is a file in `keyturn.cli` and one entry in `COMMANDS`. The file has a
function of its name, or a ``group`` of commands; its docstring is the help. This
module has only cheap imports: the help page needs no others.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from keyturn.cli import version
from keyturn.cli.global_options import GlobalOptions
from keyturn.gateway.errors import KeyturnError, SettingsError, remedy

USAGE = 2
"""Exit code of a mistake that the user can fix: settings, policy, files, arguments."""

UNEXPECTED = 70
"""Exit code of an internal error (EX_SOFTWARE of sysexits.h)."""


COMMANDS = {
    "demo": "Show it all on this machine: no Slack account, Redis or API key.",
    "run": "Run gateway, agents and bot in one process until it is stopped.",
    "gateway": "Run the agents' side: workers, expiries and your agents.",
    "bot": "Run the Slack side: cards, clicks, modals.",
    "sandbox": "Run a local Slack workspace that refuses what Slack refuses.",
    "doctor": "Check every part, and explain how to fix each problem.",
    "verify": "Prove the guarantees on this installation: store, policy and keys.",
    "scan": "List tools of a code base that can run without a gate of Keyturn.",
    "freeze": "Freeze an agent, a tool or everything, including approved calls.",
    "unfreeze": "End a freeze; for an agent this also ends its pause.",
    "frozen": "List freezes and pauses, with author, time and reason.",
    "jobs": "List failed runs, retry them, or drop them.",
    "outbox": "List readers of the outbox, and drop a reader that is gone.",
    "repair": "Repair records after data was lost or restored.",
    "backup": "Back up the store, the audit log, and checkpoints in SQLite.",
    "restore": "Restore a backup; no call runs twice.",
    "manifest": "Print the manifest of the Slack app, or check one.",
    "keys": "Make, rotate, retire and list the keys that Keyturn signs with.",
    "audit": "Read, prove, export and verify the audit log.",
    "erase": "Erase approvals; the audit log still verifies.",
    "security": "List security events: forged, refused or stalled data.",
    "stats": "Count calls by decision, and report their waiting times.",
    "policy": "Check a policy, explain it, prove it, or try it on past calls.",
    "api-keys": "Make, list and revoke API keys for agents in other processes.",
    "mcp": "Put people before the tools of MCP servers, for any MCP client.",
    "hooks": "Print the settings that put Keyturn before the tools of a coding agent.",
    "hook": "Answer the command hook of a coding agent.",
    "webhooks": "List and test webhooks, and show their secrets.",
    "version": "Print the version of Keyturn and of Python.",
}
"""The commands in the order of the help page, with the first line of their help. The
texts are copied here so that the help page loads none of their modules; a test compares
them.
"""

_MODULES = {
    "verify": "verify.command",
    "unfreeze": "freeze",
    "frozen": "freeze",
    "restore": "backup",
}
"""Modules of `keyturn.cli` that do not have the name of their command."""

_EXTRAS = {
    "demo": "all",
    "run": "all",
    "bot": "slack",
    "doctor": "slack",
    "verify": "slack",
    "mcp": "mcp",
}
"""The extra with the packages of a command; the others need ``server`` at most.

The demo and a first ``run`` start the embedded store as well.
"""

_WITH_SLACK = {"all", "slack"}
_SLACK_PACKAGE = "slack_bolt"
"""A package of the extra ``slack``: the help page reports if it is missing."""


def run(
    words: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    loaded: Callable[[], object] = lambda: None,
) -> int:
    """Run one command and return its exit code.

    Args:
        words: the command line without ``keyturn``; None for the process's.
        env: the environment; None for the process's.
        loaded: called after the command's modules are imported, before it runs.
    """
    given = sys.argv[1:] if words is None else list(words)
    # Before the options are parsed: the modules of the command are imported first.
    options = GlobalOptions(
        env=dict(os.environ if env is None else env), debug="--debug" in given
    )
    try:
        found = commands(given)
        loaded()
        found(given, prog_name="keyturn", obj=options)
    except SystemExit as ended:
        # `sys.exit` takes any object; a string means failure.
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except KeyturnError as error:
        if options.debug:
            raise
        word = typer.style("Error:", fg=typer.colors.RED)
        is_plain = bool(options.env.get("NO_COLOR"))
        typer.echo(f"{word} {error}", err=True, color=False if is_plain else None)
        return USAGE
    except Exception as error:
        if options.debug:
            raise
        if told := remedy(error):
            typer.echo(told, err=True)
            return USAGE
        typer.echo(
            f"Keyturn failed unexpectedly ({type(error).__name__}: {error}). "
            "'keyturn --debug …' shows where; please report it.",
            err=True,
        )
        return UNEXPECTED
    return 0


def commands(words: Sequence[str]) -> typer.Typer:
    """Return the commands; only modules of commands on the command line are imported.

    Importing the agent runtime takes seconds, too long for the help page or a freeze.
    """
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
    )
    app.callback(help=_help(_options))(_options)
    # Any word, not only the first, since options may precede the command. A false match
    # only loads one more module.
    for name, text in COMMANDS.items():
        extra, package = _EXTRAS.get(name, "server"), ""
        if name in words:
            try:
                add(app, name)
            except ModuleNotFoundError as error:
                package = str(error.name)
                # A missing module of this package is a bug, which the advice to install
                # an extra would hide.
                if package.partition(".")[0] == "keyturn":
                    raise
        elif extra in _WITH_SLACK and find_spec(_SLACK_PACKAGE) is None:
            package = _SLACK_PACKAGE
        else:
            app.command(name, help=text, short_help=text)(_run_unnamed)
        if package:
            _add_missing(app, name, package, extra)
    return app


def add(app: typer.Typer, name: str) -> None:
    """Import the module of a command, and add the command or the group of commands."""
    in_module = _MODULES.get(name, name.replace("-", "_"))
    module, text = import_module(f"keyturn.cli.{in_module}"), COMMANDS[name]
    # A short help is wrapped in a list of commands; without one, the help is cut off in
    # a narrow terminal.
    if hasattr(module, "group"):
        for one in module.group.registered_commands:
            one.help = _help(one.callback)
            one.short_help = one.help.partition("\n")[0]
        app.add_typer(module.group, name=name, help=_help(module), short_help=text)
    else:
        function = getattr(module, name)
        app.command(name, help=_help(function), short_help=text)(function)


def _help(source: object) -> str:
    """Return a docstring as help; its examples and tables keep their lines."""
    text = inspect.cleandoc(source.__doc__ or "")
    return re.sub(r"^(?=.*:\n {2})", "\b\n", text, flags=re.MULTILINE)


def _run_unnamed() -> None:
    raise AssertionError("a command that is only listed never runs")


def _add_missing(app: typer.Typer, name: str, package: str, extra: str) -> None:
    """Add a command that only names the missing extra."""
    advice = f"pip install 'keyturn[{extra}]'"

    def missing() -> None:
        raise SettingsError(
            f"'keyturn {name}' needs the package {package!r}; run: {advice}"
        )

    takes_all = {"allow_extra_args": True, "ignore_unknown_options": True}
    text = f"Not installed; run: {advice}"
    app.command(name, help=text, short_help=text, context_settings=takes_all)(missing)


def _show(is_asked: bool) -> None:  # noqa: FBT001 - as click calls it
    if is_asked:
        version.version()
        raise typer.Exit


def _options(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Default: keyturn.yml."),
    ] = None,
    *,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_show
        ),
    ] = False,
) -> None:
    """Hold an AI agent's tool calls until a person agrees in Slack.

    Examples:
      keyturn demo             see it all on this machine
      keyturn manifest --link  make the Slack app
      keyturn doctor           find problems, and how to fix them
      keyturn policy check     is the policy usable?
      keyturn run              gateway, agents and bot
    """
    options = ctx.ensure_object(GlobalOptions)
    options.config, options.debug = config, debug
    if options.env.get("NO_COLOR"):  # https://no-color.org
        ctx.color = False
