"""Change messages in a channel that Slack gave another id meanwhile.

Slack knows the old id no more, and messages keep their ts. The new id is known once
somebody used a card there (`twokey.bot.moved_cards`). Only what belongs to a thread is
still posted there, and no new card: such a channel is shared with another organization
now, and whether cards belong there is the operator's to decide.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from twokey.bot.web import Slack, SlackBody, SlackRefused

logger = logging.getLogger(__name__)

Arguments = Mapping[str, object]


async def _nothing_known() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class MovedChannels:
    """Looks up a channel that is not found, for what stands in it.

    Attributes:
        look_up: returns the id that each channel has now, by the one that it had.
        found: what was looked up and used before.
    """

    look_up: Callable[[], Awaitable[Mapping[str, str]]] = _nothing_known
    found: dict[str, str] = field(default_factory=dict[str, str])

    async def call(self, slack: Slack, method: str, arguments: Arguments) -> SlackBody:
        """Call a method of Slack; raises as `Slack.call` does."""
        channel = str(arguments.get("channel") or "")
        if not (arguments.get("ts") or arguments.get("thread_ts")):
            return await slack.call(method, **arguments)
        at = self.found.get(channel, channel)
        try:
            return await slack.call(method, **{**arguments, "channel": at})
        except SlackRefused as error:
            if error.error != "channel_not_found":
                raise
            now = newest_id(channel, await self.look_up())
            if now == at:
                raise
            logger.info("channel.moved from=%s to=%s", channel, now)
            self.found[channel] = now
            return await slack.call(method, **{**arguments, "channel": now})


def newest_id(channel: str, moved: Mapping[str, str]) -> str:
    """Return the id that a channel has now; it may have been given several."""
    for _ in moved:
        channel = moved.get(channel, channel)
    return channel
