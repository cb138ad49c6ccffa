"""Set up Bolt, and let it answer what Slack sent, by HTTP or through a socket."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import cast

import aiohttp
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.logger.messages import warning_client_prioritized_and_token_skipped
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.response import BoltResponse
from slack_sdk.web.async_client import AsyncWebClient

from keyturn.bot.config import BotConfig
from keyturn.bot.identity import Identity
from keyturn.bot.ingress import Delivery
from keyturn.bot.listeners.router import DELIVERY, Bolt
from keyturn.gateway.failures import any_failure, log_failure

logger = logging.getLogger(__name__)


async def dispatch(app: Bolt, delivery: Delivery) -> BoltResponse:
    """Let Bolt answer a delivery; whatever happens there, a response comes back."""
    try:
        response = await app.async_dispatch(
            AsyncBoltRequest(
                body=delivery.body,
                headers={**delivery.headers},
                context={DELIVERY: delivery},
                mode="http" if isinstance(delivery.body, str) else "socket_mode",
            )
        )
    except any_failure() as error:  # Slack needs a response
        # Listeners let nothing out: the body has another shape than Bolt expects.
        log_failure(logger, error, "bot.unreadable request=%s", delivery.digest)
        return BoltResponse(status=HTTPStatus.BAD_REQUEST)
    if response.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        # The same, found by Bolt itself. To Slack that is a refusal, not a fault.
        return BoltResponse(status=HTTPStatus.BAD_REQUEST)
    return response


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

    bolts = logging.getLogger("slack_bolt.keyturn")
    bolts.addFilter(_is_news)
    app = AsyncApp(
        # Bolt sets the level of the logger of this name at each request.
        name=bolts.name,
        logger=bolts,
        client=AsyncWebClient(base_url=config.api_url, session=session),
        signing_secret=config.signing_secret,
        authorize=authorize,
        # Bolt would otherwise acknowledge events by itself and run their listeners as
        # tasks: Slack would get 200 for a message that is never kept.
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
