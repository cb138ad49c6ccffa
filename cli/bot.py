"""Run only the Slack bot."""

from __future__ import annotations

import typer

from keyturn.bot.app import SlackBot
from keyturn.cli import console
from keyturn.cli.command_context import (
    CommandContext,
    InsecureDev,
    command_context,
    configure_logs,
)
from keyturn.cli.stack import bot_config
from keyturn.cli.stop_signals import serve, until_stopped
from keyturn.cli.store_access import open_configured
from keyturn.gateway.garbage_collection import spare_what_is_there
from keyturn.gateway.policy_file import PolicyFile, followed
from keyturn.gateway.resume.ledger import ledger_of
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.trust.key_folder import Keyring, Role


def bot(ctx: typer.Context, *, insecure_dev: InsecureDev = False) -> None:
    """Run the Slack side: cards, clicks, modals.

    Examples:
      keyturn bot  only the Slack side; two or more share the clicks
    """
    command = command_context(ctx)
    configure_logs(command, command.settings(), insecure_dev=insecure_dev)
    serve(_bot(command, insecure_dev=insecure_dev))


async def _bot(command: CommandContext, *, insecure_dev: bool) -> None:
    settings = command.settings()
    policy, tenant = PolicyFile(settings.policy), settings.tenant
    config = bot_config(settings)
    spare_what_is_there()
    keyring = Keyring.of(settings, Role.BOT)
    opened = open_configured(
        settings, insecure_dev=insecure_dev, waits=True, keyring=keyring
    )
    async with (
        opened as store,
        # People may end approved calls: no gateway runs them from an older record.
        ledger_of(store, settings.checkpoint_place),
    ):
        reviews = ReviewService(store, policy, tenant=tenant)
        async with (
            # Followed before the bot starts and until it has stopped, so that the
            # policy in force decides its last clicks.
            followed(policy, store, tenant=tenant),
            SlackBot(config, reviews) as slack_bot,
        ):
            team = slack_bot.team_id

            def ready() -> None:
                console.good(f"The bot serves workspace {team}.")

            await until_stopped(store, ready=ready)
