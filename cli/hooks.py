"""Print the settings that put Keyturn before the tools of a coding agent.

The gateway needs an address ('api' in the settings). The coding agent needs an API key
in the variable KEYTURN_API_KEY.
"""

from __future__ import annotations

from typing import Annotated

import typer

from keyturn.cli import console
from keyturn.cli.console import flag, option
from keyturn.cli.samples import quiet_policy
from keyturn.connect.claude_settings import claude_settings, codex_settings

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Url = Annotated[
    str,
    typer.Option(
        envvar="KEYTURN_GATEWAY", metavar="URL", help="URL of the gateway's API."
    ),
]
AsPolicy = Annotated[
    bool, flag("--policy", "Print a policy that lets it read files instead.")
]
_HERE = "http://127.0.0.1:8780"


@group.command("claude-code")
def claude_code(
    *,
    url: Url = _HERE,
    requester: Annotated[
        str,
        option("USER", "Slack user id of its user, who then cannot approve its calls."),
    ] = "",
    reports: Annotated[
        bool, flag("--reports", "Also report results of approved calls.")
    ] = False,
    defer: Annotated[
        bool, flag("--defer", "For claude -p: end the run while people decide.")
    ] = False,
    policy: AsPolicy = False,
) -> None:
    """Print the settings of Claude Code, or a policy for it.

    Examples:
      keyturn hooks claude-code > .claude/settings.json  ask about every call
      keyturn hooks claude-code --reports                also report results
      keyturn hooks claude-code --policy > policy.yml    ask except for reading
    """
    if policy:
        typer.echo(quiet_policy(), nl=False)
        return
    console.as_json(
        claude_settings(url, requester=requester, reports=reports, defers=defer)
    )


@group.command()
def codex(
    *,
    managed: Annotated[
        bool, flag("--managed", "For requirements.toml, whose hooks need no trust.")
    ] = False,
    policy: AsPolicy = False,
) -> None:
    """Print the settings of Codex, or a policy for it.

    Examples:
      keyturn hooks codex --managed > /etc/codex/requirements.toml  ask about every call
      keyturn hooks codex >> ~/.codex/config.toml  the same; trust it in /hooks
      keyturn hooks codex --policy > policy.yml    ask except for reading
    """
    shown = quiet_policy() if policy else codex_settings(is_managed=managed)
    typer.echo(shown, nl=False)
