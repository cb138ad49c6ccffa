"""Run only the Slack bot."""

from __future__ import annotations

import typer

from keyturn.bot.app import SlackBot
from keyturn.bot.manifest import INSTALL_PATH
from keyturn.cli.command_context import (
    CommandContext,
    InsecureDev,
    command_context,
    configure_logs,
)
from keyturn.cli.stack import bot_config, reviewing
from keyturn.cli.stop_signals import run_until_stopped, serve
from keyturn.cli.workspaces import serving_workspaces


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
    if settings.slack.workspaces:
        each = serving_workspaces(settings, command.env, insecure_dev=insecure_dev)
        async with each as store:
            page = f"{settings.slack.url}{INSTALL_PATH}"
            await run_until_stopped(
                store, f"People install the app in their workspace at {page}"
            )
        return
    config = bot_config(settings)
    async with (
        reviewing(settings, insecure_dev=insecure_dev) as reviews,
        SlackBot(config, reviews) as slack_bot,
    ):
        team = slack_bot.team_id
        await run_until_stopped(reviews.store, f"The bot serves workspace {team}.")
