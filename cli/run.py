"""Run gateway, agents and Slack bot in one process."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from keyturn.cli import console
from keyturn.cli.command_context import (
    CommandContext,
    InsecureDev,
    command_context,
    configure_logs,
)
from keyturn.cli.demo_stack import REQUESTER, holders, open_demo_stack, seed
from keyturn.cli.stack import open_stack
from keyturn.cli.stop_signals import serve, until_stopped
from keyturn.cli.store_access import SANDBOX_FOLDER
from keyturn.gateway.config import DEFAULT_FILE
from keyturn.gateway.garbage_collection import spare_what_is_there
from keyturn.gateway.logs import write_logs

PAGE_PORT = 8765


def run(
    ctx: typer.Context,
    *,
    in_sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox", help="With a local Slack and its page; needs no account."
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=console.LAST_PORT,
            help="Port of the sandbox's page; 0: any free.",
        ),
    ] = PAGE_PORT,
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
        serve(_run_in_sandbox(command, port))
    else:
        serve(_run(command, insecure_dev=insecure_dev))


async def _run(command: CommandContext, *, insecure_dev: bool) -> None:
    settings = command.settings()
    configure_logs(command, settings, insecure_dev=insecure_dev)
    async with open_stack(settings, insecure_dev=insecure_dev) as stack:
        keyturn, team = stack.keyturn, stack.bot.team_id
        agents = ", ".join(settings.agent_names) or "none in keyturn.yml"
        spare_what_is_there()

        # Printed only once signals are handled: a script may wait for these lines and
        # then stop the process immediately.
        def say() -> None:
            console.good(f"Keyturn runs in workspace {team}.")
            console.good(f"Agents: {agents}. Ctrl+C stops it; approvals stay.")
            if stack.api_url:
                console.good(f"Agents in other processes reach it at {stack.api_url}.")

        await until_stopped(keyturn.store, ready=say)


async def _run_in_sandbox(command: CommandContext, port: int) -> None:
    settings, policy = command.settings(), command.policy()
    # This log is for a developer, who needs the texts of agents' errors, and it cannot
    # contain production data.
    write_logs(settings.log, shows_errors=True)
    async with open_demo_stack(
        command.config or DEFAULT_FILE,
        settings.data_dir / SANDBOX_FOLDER,
        port=port,
        env=command.env,
        seed=partial(seed, policy=policy),
        # The demo's suggestions concern its sample agent; here other agents run.
        suggestions=(),
    ) as demo:
        spare_what_is_there()
        url = f"{demo.sandbox.url}/?user={REQUESTER}"
        agents = ", ".join(settings.agent_names) or "none in keyturn.yml"
        console.good(f"A local Slack: {typer.style(url, bold=True)}")
        console.good(f"Agents: {agents}. You are Dan; ask with '@keyturn ...'.")
        for line in holders(policy, demo.sandbox.workspace):
            console.note(line)
        console.note("Switch to one of them to decide.")
        # Otherwise another command would open the store of `keyturn run`, and make, for
        # example, an API key that this gateway refuses.
        console.note(
            "Commands for it, in another terminal: "
            f"KEYTURN_DATA_DIR={settings.data_dir / SANDBOX_FOLDER} keyturn …"
        )
        console.note("Ctrl+C stops everything.")
        await until_stopped(demo.stack.keyturn.store)
