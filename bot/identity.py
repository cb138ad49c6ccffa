"""Identify the bot at start (``auth.test``), and later check its token.

Every response of Slack's Web API shows whether the token works. A bot without recent
calls requests ``auth.test`` at most once in `CHECKED_S`, so health checks do not use up
the limit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from keyturn.bot.config import BotConfig
from keyturn.bot.manifest import OPTIONAL, SCOPES
from keyturn.bot.web import (
    WORKSPACE_ERRORS,
    RateLimited,
    Slack,
    SlackBody,
    SlackError,
    SlackRefused,
    text_at,
)
from keyturn.gateway.errors import SettingsError

START_WITHIN_S = 120.0
"""Time in which a starting bot retries while Slack does not answer."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """The bot's identity in Slack."""

    team: str
    enterprise: str
    user: str
    bot_id: str


async def identify(slack: Slack, config: BotConfig) -> Identity:
    """Ask Slack for the bot's identity and scopes.

    Raises:
        SettingsError: the token is wrong, of another workspace or of an unexpected
            organization, or lacks scopes; or Slack does not answer in time.
    """
    try:
        reply, granted = await ask_until_answered(slack.test, config)
    except SlackRefused as error:
        if config.install_url:
            raise SettingsError(token_problem(config, error.error)) from error
        raise SettingsError(
            f"Slack refused SLACK_BOT_TOKEN ({error.error!r}); copy the Bot User OAuth "
            "Token (xoxb-…) from api.slack.com/apps, 'OAuth & Permissions'."
        ) from error
    # A missing header does not prevent the start: a missing scope shows in the first
    # call that needs it (`missing_scope`).
    missing: list[str] = sorted(set(SCOPES) - granted) if granted else []
    # An app installed before these scopes were added continues to work.
    for scope in OPTIONAL.keys() & missing:
        logger.warning("%s scope=%s", OPTIONAL[scope], scope)
        missing.remove(scope)
    if missing:
        raise SettingsError(
            f"The bot token lacks the scopes {', '.join(missing)}; add them on "
            "api.slack.com/apps, 'OAuth & Permissions' (or paste manifest.yml again), "
            "and install the app again."
        )
    team, enterprise = text_at(reply, "team_id"), text_at(reply, "enterprise_id")
    if config.install_url and config.organization == enterprise != "":
        # Slack names the organization instead of a workspace.
        is_of_organization = reply.get("is_enterprise_install") is True
        team = slack.team = config.team if is_of_organization else team
    else:
        check_one_workspace(reply)
    if config.team and team != config.team:
        raise SettingsError(
            f"The bot token is of the workspace {team!r}, the settings want "
            f"{config.team!r}; use the token of that workspace."
        )
    return Identity(
        team=team,
        enterprise=enterprise,
        user=text_at(reply, "user_id"),
        bot_id=text_at(reply, "bot_id"),
    )


def token_problem(config: BotConfig, error: str) -> str:
    """Return why the bot cannot work with its token, and what to do."""
    if config.install_url:
        return (
            f"Slack does not accept the bot's token any more ({error!r}); install the "
            f"app again at {config.install_url}"
        )
    return (
        f"Slack does not accept SLACK_BOT_TOKEN any more ({error!r}); install the app "
        "again, set the new token and start the bot again."
    )


def check_one_workspace(reply: SlackBody) -> None:
    """Refuse an app that is installed for a whole organization (Enterprise Grid).

    Its clicks come from workspaces other than the token's, and each would be refused as
    a stranger's.

    Raises:
        SettingsError: it is; the message explains how to install it instead.
    """
    if reply.get("is_enterprise_install") is True:
        raise SettingsError(
            "The app is installed for a whole organization; Keyturn serves one "
            "workspace. Install it in the workspace where people review, and use the "
            "Bot User OAuth Token of that installation as SLACK_BOT_TOKEN."
        )


async def ask_until_answered(ask: Callable[[], Awaitable[T]], config: BotConfig) -> T:
    """Ask Slack until it answers, because it may be unreachable while the bot starts.

    Raises:
        SlackRefused: Slack answered, and refused.
        SettingsError: no answer within `START_WITHIN_S`; the message names the checks.
    """
    deadline, pause_s = time.monotonic() + START_WITHIN_S, _FIRST_PAUSE_S
    while True:
        try:
            return await ask()
        except SlackError as error:
            # A refusal is an answer: the token is wrong, and a retry would not change
            # that. Refusals of the whole workspace pass.
            if isinstance(error, SlackRefused) and error.error not in WORKSPACE_ERRORS:
                raise
            wait_s = error.retry_after_s if isinstance(error, RateLimited) else pause_s
            silent = _silent(error, config)
            # Checked before the pause: a Retry-After beyond the deadline is reported
            # immediately.
            if time.monotonic() + wait_s > deadline:
                raise silent from error
            logger.warning("bot.waits_for_slack again_in_s=%.1f why=%s", wait_s, silent)
        await asyncio.sleep(wait_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _silent(error: SlackError, config: BotConfig) -> SettingsError:
    return SettingsError(
        f"Slack does not answer at {config.api_url!r} ({error}); check the network, "
        "the proxy, slack-status.com, and 'slack.api_url' (KEYTURN_SLACK_API_URL)."
    )


CHECKED_S = 60.0
REJECTED_S = 10.0
"""Seconds until a rejected token is tried again."""


class BotToken:
    """Whether the bot's token works, by Slack's last answer.

    Args:
        slack: makes calls with the token, and keeps Slack's last answer about it.
        config: settings with the source of the token.
        clock: seconds, monotonic.
    """

    def __init__(
        self, slack: Slack, config: BotConfig, *, clock: Callable[[], float]
    ) -> None:
        self._slack = slack
        self._config = config
        self._clock = clock
        # As if checked: `identify` has just called auth.test when the bot starts.
        self._checked_at = clock()

    async def problem(self) -> str:
        """Return why the bot cannot work with its token, as a sentence, or ""."""
        wait_s = REJECTED_S if self._slack.token_error else CHECKED_S
        if self._clock() - self._checked_at >= wait_s:
            await self._check()
        error = self._slack.token_error
        return token_problem(self._config, error) if error else ""

    async def lost(self, event: str) -> None:
        """Record an event about the loss of the token, and ask Slack.

        The event may be late, or about a token that was replaced since.
        """
        # Before the request, so that the health check shows it even while Slack is
        # unreachable.
        self._slack.token_error = event
        await self._check()
        if self._slack.token_error:
            logger.error("bot.token_lost event=%s", event)

    async def _check(self) -> None:
        self._checked_at = self._clock()
        # The call itself stores Slack's answer about the token.
        with suppress(SlackError):
            await self._slack.test()
