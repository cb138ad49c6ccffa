"""Set up Bolt, for events and commands; `dispatch` says what does not pass it."""

from __future__ import annotations

import logging
from typing import cast

import aiohttp
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.logger.messages import warning_client_prioritized_and_token_skipped
from slack_sdk.web.async_client import AsyncWebClient

from twokey.bot.config import BotConfig
from twokey.bot.identity import Identity
from twokey.bot.listeners.router import Bolt


def bolt_app(config: BotConfig, me: Identity, session: aiohttp.ClientSession) -> Bolt:
    """Return Bolt's app: it answers when a listener is done.

    Bolt's own ``auth.test`` for every request is replaced by the result at start.
    Listeners check who sent a request, since they can refuse with a sentence.
    """

    async def authorize() -> AuthorizeResult:
        """Return whose bot answers."""
        return AuthorizeResult(
            enterprise_id=me.enterprise or None,
            team_id=me.team,
            bot_token=config.bot_token,
            bot_id=me.bot_id,
            bot_user_id=me.user,
        )

    bolts = logging.getLogger("slack_bolt.twokey")
    bolts.addFilter(_is_news)
    app = AsyncApp(
        name="twokey",
        logger=bolts,
        client=AsyncWebClient(base_url=config.api_url, session=session),
        signing_secret=config.signing_secret,
        authorize=authorize,
        # Bolt would otherwise acknowledge events by itself and run their listeners as
        # tasks: Slack would hear 200 for a message that is never kept.
        process_before_response=True,
        # The ingress verifies, by the clock of the store. Bolt would again, by that of
        # this machine, and refuse everything where that one is wrong.
        request_verification_enabled=False,
    )
    return cast("Bolt", app)


def _is_news(record: logging.LogRecord) -> bool:
    # Bolt finds SLACK_BOT_TOKEN in the environment by itself, and does not need it.
    return record.getMessage() != warning_client_prioritized_and_token_skipped()


def quiet_slack_loggers() -> None:
    """Keep bodies and tokens out of logs: the SDK writes them below WARNING."""
    for name in ("slack_bolt", "slack_sdk"):
        slacks = logging.getLogger(name)
        slacks.setLevel(max(logging.WARNING, slacks.level))
