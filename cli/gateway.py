"""Run only the gateway and its agents; it needs no Slack."""

from __future__ import annotations

import typer

from twokey.cli import console, start_options
from twokey.cli.command_context import CommandContext, command_context
from twokey.cli.hanging_threads import serve
from twokey.cli.serving_others import serving_others
from twokey.cli.start_options import InsecureDev, configure_logs
from twokey.cli.stop_signals import until_stopped
from twokey.gateway.embed import Twokey
from twokey.gateway.garbage_collection import spare_what_is_there
from twokey.gateway.trust.key_folder import Role
from twokey.gateway.trust.keyring import Keyring

EXAMPLES = start_options.EXAMPLES


def gateway(ctx: typer.Context, *, insecure_dev: InsecureDev = False) -> None:
    """Run the agents' side: workers, expiries and your agents."""
    serve(_gateway(command_context(ctx), insecure_dev=insecure_dev))


async def _gateway(command: CommandContext, *, insecure_dev: bool) -> None:
    settings = command.settings()
    configure_logs(command, settings, insecure_dev=insecure_dev)
    keyring = Keyring.of(settings, Role.GATEWAY, Role.AUDIT)
    async with (
        Twokey(settings, insecure_dev=insecure_dev, keyring=keyring) as twokey,
        serving_others(settings, twokey) as url,
    ):
        names = ", ".join(settings.agents) or "nobody"
        spare_what_is_there()

        def say() -> None:
            console.good(f"The gateway runs for {names}.")
            if url:
                console.good(f"Agents in other processes reach it at {url}.")

        await until_stopped(twokey.reload, twokey.store, ready=say)
