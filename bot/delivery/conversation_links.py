"""Find the permalinks of the Slack messages with which agents were asked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from twokey.bot.text_types import link_url
from twokey.bot.web import (
    NOT_ABOUT_THE_CARD,
    Slack,
    SlackError,
    SlackRefused,
    text_at,
)
from twokey.gateway.approvals.record import Origin

logger = logging.getLogger(__name__)

PERMALINK = "chat.getPermalink"
_WITHIN_S = 2.0
"""How long a card waits for its link, which is not worth more."""

_PAUSE_S = 30.0
"""After a failure: Slack is not asked for each card while it cannot answer."""

_KEPT = 2_000
_DIRECT = "D"


class ConversationLinks:
    """Permalinks of messages, each asked for once by this process.

    A card is posted without a link rather than late: whatever fails leaves it out.

    Args:
        clock: seconds, never going backwards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._known: dict[tuple[str, str], str] = {}
        self._clock = clock
        self._not_before = 0.0

    async def find(self, slack: Slack, origin: Origin | None) -> str:
        """Return the address of a message; "" where there is none to show.

        There is none for a direct message: nobody but its author could open it.
        """
        if origin is None or origin.channel.startswith(_DIRECT):
            return ""
        place = origin.channel, origin.thread_ts
        if place not in self._known:
            if self._clock() < self._not_before:
                return ""
            found = await _permalink(slack, origin)
            if found is None:
                self._not_before = self._clock() + _PAUSE_S
                return ""
            # A full cache is simply emptied: each entry costs one call.
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[place] = found
        return self._known[place]


async def _permalink(slack: Slack, origin: Origin) -> str | None:
    """Ask Slack; "" for a message that it does not know, None to ask again later."""
    try:
        async with asyncio.timeout(_WITHIN_S):
            answer = await slack.ask(
                PERMALINK, channel=origin.channel, message_ts=origin.thread_ts
            )
    except SlackRefused as error:
        logger.info("link.refused why=%s", error.error)
        # What is refused to the bot as a whole says nothing of the message.
        return None if error.error in NOT_ABOUT_THE_CARD else ""
    except (SlackError, TimeoutError) as error:
        logger.info("link.failed why=%s", type(error).__name__)
        return None
    url = text_at(answer, "permalink")
    return url if link_url(url) else ""
