"""Run only the Slack bot."""

from __future__ import annotations

import asyncio

import typer

from twokey.bot.app import SlackBot
from twokey.cli import console, start_options
from twokey.cli.command_context import CommandContext, command_context
from twokey.cli.stack import bot_config
from twokey.cli.start_options import InsecureDev, configure_logs
from twokey.cli.stop_signals import until_stopped
from twokey.cli.store_access import open_configured
from twokey.gateway.policy_file import PolicyFile, followed
from twokey.gateway.service.reviews import ReviewService

EXAMPLES = start_options.EXAMPLES


def bot(ctx: typer.Context, *, insecure_dev: InsecureDev = False) -> None:
    """Run the Slack side: cards, clicks, modals."""
    asyncio.run(_bot(command_context(ctx), insecure_dev=insecure_dev))


async def _bot(command: CommandContext, *, insecure_dev: bool) -> None:
    settings = command.settings()
    configure_logs(command, settings, insecure_dev=insecure_dev)
    policy, tenant = PolicyFile(settings.policy), settings.tenant
    config = bot_config(settings)
    async with open_configured(settings, insecure_dev=insecure_dev) as store:
        reviews = ReviewService(store, policy, tenant=tenant)
        async with (
            # Followed before the bot starts and until it has stopped, so that its last
            # clicks are decided by the policy in force.
            followed(policy, store, tenant=tenant),
            SlackBot(config, reviews) as slack_bot,
        ):
            team = slack_bot.team_id
            await until_stopped(
                policy.reload,
                store,
                ready=lambda: console.good(f"The bot serves workspace {team}."),
            )
