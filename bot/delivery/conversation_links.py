"""Find a conversation: by the name of an agent's thread, and in a moved channel."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from keyturn.bot.web import (
    Slack,
    SlackBody,
    SlackRefused,
)

logger = logging.getLogger(__name__)

_AGENT_THREAD = re.compile(r"slack:([^:]+):([A-Z0-9]+):([0-9]+\.[0-9]+)")

Arguments = Mapping[str, object]


async def _nothing_known() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class MovedChannels:
    """Looks up the new id of a channel, for messages that are in it.

    Slack no longer knows the old id, and messages keep their ts. The new id is known
    once somebody used a card there (`keyturn.bot.listeners.usable_copy`). Only what
    belongs to a thread is still posted there, and no new card: such a channel is shared
    with another organization now, and the operator decides whether cards belong there.

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


PERMALINK = "chat.getPermalink"
"""Asked for to learn whether a message is there."""


def place_named(agent_thread: str, team: str) -> tuple[str, str] | None:
    """Return channel and thread from the name of an agent's thread in a workspace.

    None for a thread that no message of this workspace began.
    """
    found = _AGENT_THREAD.fullmatch(agent_thread)
    return (found[2], found[3]) if found and found[1] == team else None
