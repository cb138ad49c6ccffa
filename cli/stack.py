"""Start the whole stack in one process: gateway, agents and bot."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from keyturn.bot.app import SlackBot
from keyturn.bot.config import BotConfig
from keyturn.cli.gateway import serving_agents
from keyturn.cli.store_access import open_configured
from keyturn.gateway.config import Settings, text_of
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.policy_file import PolicyFile, followed
from keyturn.gateway.resume.ledger import ledger_of
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.trust.key_folder import Keyring, Role

_NO_AGENTS = (
    "'agents' in keyturn.yml names no graph. That is right if other programs run your "
    "agents; otherwise name one: README.md shows how."
)
_OF_WORKSPACES = (
    "'slack.workspaces' is for a process with only the bot: run 'keyturn bot', and "
    "'keyturn gateway' with each of the files there."
)
_NEXT = (
    "Then run 'keyturn doctor' to check the setup. 'keyturn run --sandbox' needs no "
    "Slack account, and 'keyturn demo' needs no setup at all."
)


@dataclass(frozen=True)
class Stack:
    """A running gateway, its bot, and the URL of its HTTP API."""

    keyturn: Keyturn
    bot: SlackBot
    api_url: str = ""


@asynccontextmanager
async def open_stack(
    settings: Settings, *, insecure_dev: bool = False
) -> AsyncGenerator[Stack]:
    """Start the components of one process, and stop them without losing data.

    Raises:
        KeyturnError: one sentence about the first problem.
    """
    # First of all: a missing secret is reported before any agent runs.
    config = bot_config(settings)
    async with (
        # The bot stops first: cards and private replies still go out while the gateway
        # runs.
        Keyturn(settings, insecure_dev=insecure_dev) as keyturn,
        SlackBot(config, keyturn.reviews, others=keyturn.registration.ready) as bot,
        serving_agents(settings, keyturn) as url,
    ):
        yield Stack(keyturn, bot, url)


def ensure_configured(settings: Settings) -> None:
    """Look for settings that a first start lacks, all of them at once.

    Raises:
        SettingsError: names each of them, with the next step.
    """
    if settings.slack.workspaces:
        raise SettingsError(_OF_WORKSPACES)
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
    raise SettingsError(f"Keyturn is not set up yet:\n{listed}\n{_NEXT}")


def bot_config(settings: Settings) -> BotConfig:
    """Return the bot's part of the settings.

    Raises:
        SettingsError: see `ensure_configured`.
    """
    ensure_configured(settings)
    return config_of(settings, text_of(settings.bot_token))


def config_of(settings: Settings, token: str, **changes: str) -> BotConfig:
    """Return the bot's part of complete settings, for a token."""
    given = {
        **vars(settings.slack),
        "bot_token": token,
        "signing_secret": text_of(settings.signing_secret),
        "app_token": text_of(settings.app_token),
        "seal_keys": settings.secret_keys(),
        "tenant": settings.tenant,
        "agents": tuple(settings.agents),
        "metrics": settings.metrics,
        "messages_kept": settings.retention.messages,
    }
    return BotConfig.model_validate({**given, **changes})


@asynccontextmanager
async def reviewing(
    settings: Settings, *, insecure_dev: bool = False
) -> AsyncGenerator[ReviewService]:
    """Open what a process with only the bot needs of a tenant.

    Raises:
        KeyturnError: one sentence about the first problem.
    """
    policy, keyring = PolicyFile(settings.policy), Keyring.of(settings, Role.BOT)
    async with (
        open_configured(
            settings, insecure_dev=insecure_dev, waits=True, keyring=keyring
        ) as store,
        # People may end approved calls: no gateway runs them from an older record.
        ledger_of(store, settings.checkpoint_place),
        # Followed before the bot starts and until it has stopped, so that the policy in
        # force decides its last clicks.
        followed(policy, store, tenant=settings.tenant),
    ):
        yield ReviewService(store, policy, tenant=settings.tenant)
