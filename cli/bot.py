"""Run only the Slack bot, in one process or several."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from twokey.bot.app import SlackBot
from twokey.bot.worker import WHOLE, Worker, prepare_process
from twokey.cli import bot_workers, console, start_options
from twokey.cli.command_context import CommandContext, command_context
from twokey.cli.stack import bot_config
from twokey.cli.start_options import InsecureDev, configure_logs
from twokey.cli.stop_signals import until_stopped
from twokey.cli.store_access import open_configured
from twokey.gateway.policy_file import PolicyFile, followed
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.trust.key_folder import Role
from twokey.gateway.trust.keyring import Keyring

EXAMPLES = start_options.EXAMPLES

_Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        max=bot_workers.MOST,
        metavar="N",
        help="Answer Slack in N processes, and publish cards in one more.",
        show_default="all in one process",
    ),
]
_Worker = Annotated[str, typer.Option("--worker", hidden=True)]


def bot(
    ctx: typer.Context,
    *,
    workers: _Workers = None,
    insecure_dev: InsecureDev = False,
    worker: _Worker = "",
) -> None:
    """Run the Slack side: cards, clicks, modals."""
    command = command_context(ctx)
    configure_logs(command, command.settings(), insecure_dev=insecure_dev)
    if workers is None:
        asyncio.run(_bot(command, worker, insecure_dev=insecure_dev))
        return
    running = bot_workers.run_workers(command, workers, insecure_dev=insecure_dev)
    raise typer.Exit(asyncio.run(running))


async def _bot(command: CommandContext, worker: str, *, insecure_dev: bool) -> None:
    settings = command.settings()
    policy, tenant = PolicyFile(settings.policy), settings.tenant
    config = bot_config(settings)
    mine: Worker = bot_workers.worker_of(worker) if worker else WHOLE
    if worker:
        config = bot_workers.config_of(config)
    prepare_process(mine)
    keyring = Keyring.of(settings, Role.BOT)
    async with open_configured(
        settings, insecure_dev=insecure_dev, waits=True, keyring=keyring
    ) as store:
        reviews = ReviewService(store, policy, tenant=tenant)
        async with (
            # Followed before the bot starts and until it has stopped, so that its last
            # clicks are decided by the policy in force.
            followed(policy, store, tenant=tenant),
            SlackBot(config, reviews, worker=mine) as slack_bot,
        ):
            team = slack_bot.team_id

            def ready() -> None:
                if worker:
                    bot_workers.say_ready()
                else:
                    console.good(f"The bot serves workspace {team}.")

            await until_stopped(
                policy.reload, store, ready=ready, is_quiet=bool(worker)
            )
