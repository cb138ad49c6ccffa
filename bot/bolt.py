"""Set up Bolt, and pass it requests from HTTP and from Socket Mode."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import cast

import aiohttp
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.logger.messages import warning_client_prioritized_and_token_skipped
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_sdk.web.async_client import AsyncWebClient

from twokey.bot.config import BotConfig
from twokey.bot.identity import Identity
from twokey.bot.ingress import Answer, Delivery
from twokey.bot.listeners.router import DIGEST, RECORDED, Bolt
from twokey.gateway.config import SlackMode
from twokey.gateway.failures import log_failure

logger = logging.getLogger(__name__)


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
        request_verification_enabled=config.mode is SlackMode.HTTP,
    )
    return cast("Bolt", app)


def _is_news(record: logging.LogRecord) -> bool:
    # Bolt finds SLACK_BOT_TOKEN in the environment by itself, and does not need it.
    return record.getMessage() != warning_client_prioritized_and_token_skipped()


class Dispatch:
    """Hand requests to Bolt; whatever happens there, an answer comes back."""

    def __init__(self, app: Bolt) -> None:
        self._bolt = app

    async def __call__(self, delivery: Delivery) -> Answer:
        """Hand over one delivery."""
        is_http = isinstance(delivery.body, str)
        try:
            request = AsyncBoltRequest(
                body=delivery.body,
                headers={**delivery.headers},
                context={DIGEST: delivery.digest, RECORDED: delivery.is_recorded},
                mode="http" if is_http else "socket_mode",
            )
            response = await self._bolt.async_dispatch(request)
        except Exception as error:  # noqa: BLE001 - Slack needs an answer
            # Listeners let nothing out; this would be Bolt's own.
            log_failure(logger, error, "bot.dispatch_failed")
            return Answer(HTTPStatus.BAD_REQUEST)
        if response.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            # Bolt could not read it. To Slack that is a refusal, not a fault of ours.
            return Answer(HTTPStatus.BAD_REQUEST)
        kind = "application/json" if response.body.startswith("{") else "text/plain"
        return Answer(response.status, response.body, kind)


def quiet_slack_loggers() -> None:
    """Keep bodies and tokens out of logs: the SDK writes them below WARNING."""
    for name in ("slack_bolt", "slack_sdk"):
        slacks = logging.getLogger(name)
        slacks.setLevel(max(logging.WARNING, slacks.level))
