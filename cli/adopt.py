"""Replace lost checkpoints by the database that the settings name."""

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
    ("keyturn adopt", "the earlier checkpoints are lost; go on with these")
)


def adopt(ctx: typer.Context) -> None:
    """Replace lost checkpoints by those of the settings.

    They are used although calls wait whose threads are elsewhere. Threads that these
    checkpoints do not have are lost: their calls end, and people are notified.
    """
    for before, now in asyncio.run(_accepted(command_context(ctx))):
        was = before.shown if before else "nowhere yet"
        console.good(
            f"Agent {now.agent!r} keeps its threads in {now.shown} (was {was})."
        )


async def _accepted(
    command: CommandContext,
) -> list[tuple[AgentCheckpoints | None, AgentCheckpoints]]:
    settings = command.settings()
    require_store(settings)
    place = settings.checkpoints.get_secret_value()
    async with open_configured(settings) as store, open_checkpoints(place) as saver:
        process = await gateway_process(
            saver, place, tenant=settings.tenant, serves=settings.agents
        )
        keys = store.keys_of_tenant(settings.tenant)
        # Read before it is replaced, for the answer alone; nothing is compared with it.
        before = (await store.processes.read(keys)).kept
        kept = tuple(kept_by(process))
        await store.processes.keep(keys, kept)
    return [(before.get((one.tenant, one.agent)), one) for one in kept]
