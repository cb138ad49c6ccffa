"""Find a card in a channel that Slack gave another id.

A private channel gets another id once people of another workspace are invited to it,
and Slack knows the old one no more. Its messages keep their ts, which nobody chooses
and no other message of ours has. Slack is asked whether one is there: nothing is
changed by what a payload says alone.
https://docs.slack.dev/reference/events/channel_id_changed

The event of that name is not used: it takes a scope to read private channels.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from twokey.bot.delivery.conversation_links import PERMALINK
from twokey.bot.delivery.moved_channels import newest_id
from twokey.bot.listener_context import ListenerContext
from twokey.bot.web import SlackRefused
from twokey.gateway.store.cards import CardPlace
from twokey.gateway.store.keys import Keys

logger = logging.getLogger(__name__)

_NOT_THERE = {"channel_not_found", "message_not_found"}


async def is_there(ctx: ListenerContext, channel: str, ts: str) -> bool:
    """Return whether a message is in a channel.

    Raises:
        SlackError: Slack does not say.
    """
    try:
        await ctx.slack.ask(PERMALINK, channel=channel, message_ts=ts)
    except SlackRefused as error:
        if error.error in _NOT_THERE:
            return False
        raise
    return True


async def follow(
    ctx: ListenerContext, keys: Keys, shown: str, was: CardPlace, channel: str
) -> CardPlace:
    """Move a card into the channel where it was found; return where it is."""
    logger.warning("card.moved shown=%s from=%s to=%s", shown, was.channel, channel)
    await _note(ctx, was.channel, channel)
    # Its place is compared there: what a publisher registered meanwhile stays.
    cards, tenant = ctx.service.store.cards, ctx.config.tenant
    await cards.forget_message(keys, tenant, shown, (was.channel, was.ts))
    return await cards.posted(keys, shown, channel=channel, ts=was.ts)


async def shown_before(
    ctx: ListenerContext,
    channel: str,
    ts: str,
    shown_at: Callable[[str], Awaitable[str]],
) -> str:
    """Return which approval a message showed while its channel had another id.

    The old id is looked for among the ids of channels that are known to have moved, and
    the channels of the policy and the settings.

    Args:
        ctx: what the listener works with.
        channel: where the message is now.
        ts: of the message.
        shown_at: returns which approval such a message shows in a channel; "" for none.

    Raises:
        SlackError: Slack does not say whether it is there.
    """
    moved = await ctx.service.store.moved_channels.known(ctx.keys, ctx.config.tenant)
    named = [*ctx.service.channels, ctx.config.fallback_channel]
    for was in dict.fromkeys([*moved, *moved.values(), *named]):
        shown = await shown_at(was)
        if shown and await is_there(ctx, channel, ts):
            await _note(ctx, newest_id(was, moved), channel)
            return shown
    return ""


async def _note(ctx: ListenerContext, was: str, now: str) -> None:
    if was != now:
        moved = ctx.service.store.moved_channels
        await moved.note(ctx.keys, ctx.config.tenant, was, now)
