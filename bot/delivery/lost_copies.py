"""Find a card whose posting as a direct message got no answer from Slack."""

from __future__ import annotations

from typing import cast

from twokey.bot.delivery.card_publisher import CardPublisher, RateLimitDelay
from twokey.bot.ids import CARD_EVENT
from twokey.bot.limits import HISTORY
from twokey.bot.web import RateLimited, SlackBody, text_at
from twokey.gateway.approvals.record import Approval

_PAGE = "200"
"""Messages that are looked through, as many as Slack recommends to ask for at once."""


async def find_copy(
    publisher: CardPublisher, record: Approval, channel: str, *, bot_user: str
) -> str:
    """Return the ts of an approval's card in a direct message; "" for none.

    Args:
        publisher: makes the call, for which the scheduler has taken a token.
        record: the approval.
        channel: of the direct message.
        bot_user: id under which the bot posts.

    Raises:
        RateLimitDelay: Slack was not asked.
        SlackError: it did not say.
    """
    try:
        # The newest messages only: it was posted a moment ago.
        response = await publisher.slack.ask(
            HISTORY, channel=channel, limit=_PAGE, include_all_metadata="true"
        )
    except RateLimited as error:
        publisher.limits.refused(HISTORY, "", error.retry_after_s)
        raise RateLimitDelay(HISTORY, channel, error.retry_after_s) from error
    messages = response.get("messages")
    listed = cast("list[SlackBody]", messages) if isinstance(messages, list) else []
    # Its author counts: another app can write such metadata in the person's name.
    found = (one for one in listed if text_at(one, "user") == bot_user)
    return next((text_at(one, "ts") for one in found if _shows(one, record.id)), "")


def _shows(message: SlackBody, approval: str) -> bool:
    is_card = text_at(message, "metadata", "event_type") == CARD_EVENT
    shown = text_at(message, "metadata", "event_payload", "approval")
    return is_card and shown == approval
