"""Find the permalinks of the Slack messages with which agents were asked."""

from __future__ import annotations

import asyncio
import logging

from twokey.bot.text_types import link_url
from twokey.bot.web import Slack, SlackError, SlackRefused, text_at
from twokey.gateway.approvals.record import Origin

logger = logging.getLogger(__name__)

PERMALINK = "chat.getPermalink"
_WITHIN_S = 2.0
"""How long a card waits for its link, which is not worth more."""

_KEPT = 2_000
_DIRECT = "D"


class ConversationLinks:
    """Permalinks of messages, each asked for once by this process.

    A card is posted without a link rather than late: whatever fails leaves it out.
    """

    def __init__(self) -> None:
        self._known: dict[Origin, str] = {}

    async def find(self, slack: Slack, origin: Origin | None) -> str:
        """Return the address of a message; "" where there is none to show.

        There is none for a direct message: nobody but its author could open it.
        """
        if origin is None or origin.channel.startswith(_DIRECT):
            return ""
        if origin not in self._known:
            found = await _permalink(slack, origin)
            if found is None:
                return ""
            # A full cache is simply emptied: each entry costs one call.
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[origin] = found
        return self._known[origin]


async def _permalink(slack: Slack, origin: Origin) -> str | None:
    """Ask Slack; "" for a message that it does not know, None to ask again later."""
    try:
        async with asyncio.timeout(_WITHIN_S):
            answer = await slack.ask(
                PERMALINK, channel=origin.channel, message_ts=origin.thread_ts
            )
    except SlackRefused as error:
        logger.info("link.refused why=%s", error.error)
        return ""
    except (SlackError, TimeoutError) as error:
        logger.info("link.failed why=%s", type(error).__name__)
        return None
    url = text_at(answer, "permalink")
    return url if link_url(url) else ""
