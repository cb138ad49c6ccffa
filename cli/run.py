"""Run gateway, agents and Slack bot in one process."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from keyturn.cli.command_context import (
    CommandContext,
    InsecureDev,
    command_context,
    configure_logs,
)
from keyturn.cli.console import flag, port_option
from keyturn.cli.stack import open_stack
from keyturn.cli.stop_signals import run_until_stopped, serve

PAGE_PORT = 8765


def run(
    ctx: typer.Context,
    *,
    in_sandbox: Annotated[
        bool, flag("--sandbox", "With a local Slack and its page; needs no account.")
    ] = False,
    port: Annotated[int, port_option("Port of the sandbox's page")] = PAGE_PORT,
    insecure_dev: InsecureDev = False,
) -> None:
    """Run gateway, agents and bot in one process until it is stopped.

    With --sandbox, a local Slack replaces the real one. It has all people and channels
    of the policy, and a link to its page is printed. Its data is stored separately, in
    'sandbox' under the data folder.

    Examples:
      keyturn run            gateway, agents and bot in one process
      keyturn run --sandbox  the same with a local Slack and a web page
    """
    command = command_context(ctx)
    if in_sandbox:
        # Imported only here: otherwise every gateway would have the sandbox in memory.
        demo_stack = import_module("keyturn.cli.demo_stack")
        serve(demo_stack.run_in_sandbox(command, port))
    else:
        serve(_run(command, insecure_dev=insecure_dev))


async def _run(command: CommandContext, *, insecure_dev: bool) -> None:
    settings = command.settings()
    configure_logs(command, settings, insecure_dev=insecure_dev)
    async with open_stack(settings, insecure_dev=insecure_dev) as stack:
        agents = ", ".join(settings.agent_names) or "none in keyturn.yml"
        await run_until_stopped(
            stack.keyturn.store,
            f"Keyturn runs in workspace {stack.bot.team_id}.",
            f"Agents: {agents}. Ctrl+C stops it; approvals stay.",
            api_url=stack.api_url,
        )
