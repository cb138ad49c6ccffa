"""Decide whether a click was on a message whose buttons count.

A private channel gets another id once people of another workspace are invited to it,
and Slack no longer accepts the old one. Its messages keep their ts, which is unique
among the bot's messages. The bot asks Slack whether a message is there: a payload alone
changes nothing. https://docs.slack.dev/reference/events/channel_id_changed

The event of that name is not used, because it needs a scope to read private channels.

A crash or a lost answer can leave a second copy of a card, with buttons. A click on it
is refused.
"""

from __future__ import annotations

import logging
from typing import LiteralString

from keyturn.bot.listener_context import ListenerContext, UserFacingError
from keyturn.bot.payload import Clicked
from keyturn.bot.web import PERMALINK, SlackError, SlackRefused, newest_id
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.reviewers.cards import CardCopy, CardPlace

logger = logging.getLogger(__name__)

_NOT_THERE = {"channel_not_found", "message_not_found"}


async def is_there(ctx: ListenerContext, channel: str, ts: str) -> bool:
    """Return whether a message is in a channel.

    Raises:
        SlackError: Slack does not answer.
    """
    try:
        await ctx.slack.ask(PERMALINK, channel=channel, message_ts=ts)
    except SlackRefused as error:
        if error.error in _NOT_THERE:
            return False
        raise
    return True


async def shown_before(ctx: ListenerContext, channel: str, ts: str) -> str:
    """Return the approval that a message showed under its channel's old id.

    Candidates for the old id are the channels known to have moved, and the channels of
    the policy and the settings.

    Raises:
        SlackError: Slack does not answer whether it is there.
    """
    moved = await ctx.service.store.moved_channels.known(ctx.keys)
    named = [*ctx.service.policy_now.channels, ctx.config.fallback_channel]
    for was in dict.fromkeys([*moved, *moved.values(), *named]):
        shown = await ctx.service.store.cards.shown_at(ctx.keys, was, ts)
        if shown and await is_there(ctx, channel, ts):
            await _note(ctx, newest_id(was, moved), channel)
            return shown
    return ""


async def _note(ctx: ListenerContext, was: str, now: str) -> None:
    if was != now:
        moved = ctx.service.store.moved_channels
        await moved.note(ctx.keys, was, now)


_NOT_LOOKED_FOR: LiteralString = (
    "Slack did not say whether this card stands in this channel, so nothing was "
    "recorded. Please click again in a moment."
)


async def is_usable_copy(
    ctx: ListenerContext,
    clicked: Clicked,
    keys: Keys,
    shown: str,
    place: CardPlace | None,
) -> bool:
    """Return whether a click was on a usable message about a record or an outage.

    ``place`` is its registered message, as it was read for this click.

    Raises:
        UserFacingError: this is unknown, because the channel may have a new id.
    """
    here = (clicked.channel, clicked.message_ts)
    if not all(here):
        return False
    # An unregistered copy (the answer to its post was lost) becomes the usable one if
    # there is none; `posted` never replaces a registered one.
    store, kept = ctx.service.store, ctx.config.messages_kept
    copies = place.copies if place else await store.copies.of_card(keys, shown)
    copy = copies.get(clicked.user)
    if copy is not None and copy.channel == clicked.channel:
        # Never registered as the card: a lost card is posted in its channel again,
        # which this would prevent.
        is_card = place is not None and (place.channel, place.ts) == here
        return is_card or await _is_own_copy(ctx, clicked, keys, shown, copy)
    if place is None:
        await store.posted_messages.note(keys, shown, here, kept=kept)
        place = await store.cards.posted(keys, shown, channel=here[0], ts=here[1])
    elif place.ts == clicked.message_ts and place.channel != clicked.channel:
        place = await _moved(ctx, clicked, keys, place.collected or shown, place)
    # Compared with the store's record after `posted`, never with the value written:
    # another click may have registered its copy first.
    return (place.channel, place.ts) == here


async def _moved(
    ctx: ListenerContext, clicked: Clicked, keys: Keys, shown: str, was: CardPlace
) -> CardPlace:
    """Follow a card into its channel's new id; return its place.

    Raises:
        UserFacingError: Slack does not answer whether it is there.
    """
    try:
        if not await is_there(ctx, clicked.channel, clicked.message_ts):
            return was
    except SlackError as error:
        logger.warning("card.not_looked_for shown=%s why=%s", shown, error)
        raise UserFacingError(_NOT_LOOKED_FOR) from None
    now = clicked.channel
    logger.warning("card.moved shown=%s from=%s to=%s", shown, was.channel, now)
    await _note(ctx, was.channel, now)
    # The store compares the place: if a publisher registered another in the meantime,
    # it stays.
    cards = ctx.service.store.cards
    await cards.forget_message(keys, shown, (was.channel, was.ts))
    return await cards.posted(keys, shown, channel=now, ts=was.ts)


async def _is_own_copy(
    ctx: ListenerContext, clicked: Clicked, keys: Keys, shown: str, copy: CardCopy
) -> bool:
    """Return whether a click in a direct message was on the person's usable copy."""
    if copy.refused:
        return False
    if not copy.ts:
        # A copy was being posted, and none was registered: the answer to its post was
        # lost. The first of them becomes the usable one, as for cards.
        store = ctx.service.store
        here = clicked.channel, clicked.message_ts
        kept = ctx.config.messages_kept
        await store.posted_messages.note(keys, shown, here, kept=kept)
        copy = await store.copies.posted(
            keys, shown, clicked.user, channel=here[0], ts=here[1]
        )
        # It may show an older state, and there may be no event left to redraw it.
        await store.cards.mark_outdated(keys, shown)
    return (copy.channel, copy.ts) == (clicked.channel, clicked.message_ts)
