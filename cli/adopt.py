"""Accept the configured checkpoint database in place of a lost one."""

from __future__ import annotations

import asyncio

import typer

from keyturn.cli import console
from keyturn.cli.command_context import CommandContext, command_context
from keyturn.cli.global_options import examples
from keyturn.cli.store_access import open_configured, require_store
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.running import gateway_process
from keyturn.gateway.service.process_check import kept_by
from keyturn.gateway.store.processes import AgentCheckpoints

EXAMPLES = examples(
    ("keyturn adopt", "the earlier checkpoints are lost; continue with these")
)


def adopt(ctx: typer.Context) -> None:
    """Replace lost checkpoints by those of the settings.

    They are accepted even if calls wait in threads that are stored elsewhere. Threads
    that these checkpoints lack are lost: their calls end, and people are notified.
    """
    for before, now in asyncio.run(_accepted(command_context(ctx))):
        was = before.shown if before else "none yet"
        console.good(
            f"The threads of agent {now.agent!r} are in {now.shown} (was {was})."
        )


async def _accepted(
    command: CommandContext,
) -> list[tuple[AgentCheckpoints | None, AgentCheckpoints]]:
    settings = command.settings()
    require_store(settings)
    place = settings.checkpoint_place
    async with open_configured(settings) as store, open_checkpoints(place) as saver:
        process = await gateway_process(
            saver, place, tenant=settings.tenant, serves=settings.agents
        )
        keys = store.keys_of_tenant(settings.tenant)
        # Read before the replacement, only for the output.
        before = (await store.processes.read(keys)).kept
        kept = tuple(kept_by(process))
        await store.processes.keep(keys, kept)
    return [(before.get((one.tenant, one.agent)), one) for one in kept]
