"""Track whether Slack still accepts the bot's token.

Every response of Slack's Web API shows it. A bot without recent calls asks
``auth.test`` at most once in `CHECKED_S`, so health checks do not use up the limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from twokey.bot.web import Slack, SlackError

logger = logging.getLogger(__name__)

CHECKED_S = 60.0
REJECTED_S = 10.0
"""How soon a token that was rejected is tried again."""


class BotToken:
    """Whether the bot's token works, as Slack said last.

    Args:
        slack: calls with the token, and remembers what Slack said of it.
        clock: seconds, never going backwards.
    """

    def __init__(self, slack: Slack, *, clock: Callable[[], float]) -> None:
        self._slack = slack
        self._clock = clock
        # As if checked: `identify` has just called auth.test when the bot starts.
        self._checked_at = clock()

    async def problem(self) -> str:
        """Return why the bot cannot work with its token, as a sentence, or ""."""
        wait_s = REJECTED_S if self._slack.token_error else CHECKED_S
        if self._clock() - self._checked_at >= wait_s:
            await self._check()
        error = self._slack.token_error
        if not error:
            return ""
        return (
            f"Slack does not accept SLACK_BOT_TOKEN any more ({error!r}); install the "
            "app again, set the new token and start the bot again."
        )

    async def lost(self, event: str) -> None:
        """Take note of an event that says the token is gone, and ask Slack.

        The event may be late, or about a token that was replaced since.
        """
        # Before Slack is asked, so that the health check shows it also while Slack is
        # away.
        self._slack.token_error = event
        await self._check()
        if self._slack.token_error:
            logger.error("bot.token_lost event=%s", event)

    async def _check(self) -> None:
        self._checked_at = self._clock()
        # What Slack said of the token is kept by the call itself.
        with suppress(SlackError):
            await self._slack.test()
