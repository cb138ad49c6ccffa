"""Start the whole stack in one process: gateway, agents and bot."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pydantic import SecretStr

from twokey.bot.app import SlackBot
from twokey.bot.config import BotConfig
from twokey.cli.serving_others import serving_others
from twokey.gateway.config import Settings
from twokey.gateway.embed import Twokey
from twokey.gateway.errors import SettingsError

_NO_AGENTS = (
    "'agents' in twokey.yml names no graph; leave it so if your own programs run their "
    "agents, else name one: README.md shows how."
)
_NEXT = (
    "Then 'twokey doctor' checks each of them. 'twokey run --sandbox' needs no Slack "
    "account, and 'twokey demo' needs nothing at all."
)


@dataclass(frozen=True)
class Stack:
    """A running gateway, the bot that speaks for it, and the URL of its HTTP API."""

    twokey: Twokey
    bot: SlackBot
    api_url: str = ""


@asynccontextmanager
async def open_stack(
    settings: Settings, *, insecure_dev: bool = False
) -> AsyncGenerator[Stack]:
    """Start everything of one process, and stop it without losing anything.

    Raises:
        TwokeyError: one sentence about the first thing that is not as it should be.
    """
    # Before anything starts: a missing secret is reported before any agent runs.
    config = bot_config(settings)
    async with (
        # The bot stops first: cards and private replies still go out while the gateway
        # is there.
        Twokey(settings, insecure_dev=insecure_dev) as twokey,
        SlackBot(config, twokey.reviews) as bot,
        serving_others(settings, twokey) as url,
    ):
        yield Stack(twokey, bot, url)


def ensure_configured(settings: Settings) -> None:
    """Look for settings that a first start lacks, all of them at once.

    Raises:
        SettingsError: names each of them, with the next step.
    """
    problems = [*settings.slack_problems()]
    try:
        settings.policy.read()
    except SettingsError as error:
        problems.append(str(error))
    if not problems:
        return
    if not settings.agents:
        problems.append(_NO_AGENTS)
    listed = "\n".join(f"  {n}. {one}" for n, one in enumerate(problems, 1))
    raise SettingsError(f"Twokey is not set up yet:\n{listed}\n{_NEXT}")


def bot_config(settings: Settings) -> BotConfig:
    """Return what the bot has to know of the settings.

    Raises:
        SettingsError: when a secret that the Slack mode needs is not set.
    """
    problems = settings.slack_problems()
    if problems:
        raise SettingsError(" ".join(problems))
    keys = settings.secret_keys()
    secrets, agents = settings.slack_secrets, tuple(settings.agents)
    return BotConfig(
        bot_token=_text(secrets.bot_token),
        mode=settings.slack.mode,
        signing_secret=_text(secrets.signing_secret),
        app_token=_text(secrets.app_token),
        seal_key=keys[0],
        old_seal_keys=keys[1:],
        tenant=settings.tenant,
        agents=agents,
        default_agent=agents[0] if agents else "",
        api_url=settings.slack.api_url,
        host=settings.slack.host,
        port=settings.slack.port,
        command=settings.slack.command,
        fallback_channel=settings.slack.fallback_channel,
        metrics=settings.metrics,
        messages_kept=settings.retention.messages,
        team=settings.slack.team,
    )


def _text(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""
