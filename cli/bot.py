"""Run only the Slack bot."""

from __future__ import annotations

import typer

from keyturn.bot.app import SlackBot
from keyturn.bot.manifest import INSTALL_PATH
from keyturn.cli import console
from keyturn.cli.command_context import (
    CommandContext,
    InsecureDev,
    command_context,
    configure_logs,
)
from keyturn.cli.stack import bot_config, reviewing
from keyturn.cli.stop_signals import serve, until_stopped
from keyturn.cli.workspaces import serving_workspaces
from keyturn.gateway.garbage_collection import spare_what_is_there


def bot(ctx: typer.Context, *, insecure_dev: InsecureDev = False) -> None:
    """Run the Slack side: cards, clicks, modals.

    Examples:
      keyturn bot  only the Slack side; two or more share the clicks
    """
    command = command_context(ctx)
    settings = command.settings()
    configure_logs(command, settings, insecure_dev=insecure_dev)
    start = _bot_of_workspaces if settings.slack.workspaces else _bot
    serve(start(command, insecure_dev=insecure_dev))


async def _bot(command: CommandContext, *, insecure_dev: bool) -> None:
    settings = command.settings()
    config = bot_config(settings)
    spare_what_is_there()
    async with (
        reviewing(settings, insecure_dev=insecure_dev) as reviews,
        SlackBot(config, reviews) as slack_bot,
    ):
        team = slack_bot.team_id

        def ready() -> None:
            console.good(f"The bot serves workspace {team}.")

        await until_stopped(reviews.store, ready=ready)


async def _bot_of_workspaces(command: CommandContext, *, insecure_dev: bool) -> None:
    settings = command.settings()
    spare_what_is_there()
    async with serving_workspaces(
        settings, command.env, insecure_dev=insecure_dev
    ) as store:

        def ready() -> None:
            page = f"{settings.slack.url}{INSTALL_PATH}"
            console.good(f"People install the app in their workspace at {page}")

        await until_stopped(store, ready=ready)
