"""Tell whether a click was on a message whose buttons count."""

from __future__ import annotations

import logging
from typing import LiteralString

from twokey.bot.delivery.conversation_links import PERMALINK
from twokey.bot.listener_context import ListenerContext, UserFacingError
from twokey.bot.payload import BlockAction
from twokey.bot.text_types import template
from twokey.bot.web import SlackError, SlackRefused
from twokey.gateway.store.card_seals import CardCopy
from twokey.gateway.store.cards import CardPlace
from twokey.gateway.store.keys import Keys

logger = logging.getLogger(__name__)

_NOT_THERE = {"channel_not_found", "message_not_found"}
_NOT_LOOKED_FOR: LiteralString = (
    "Slack did not say whether this card stands in this channel, so nothing was "
    "recorded. Please click again in a moment."
)


async def is_usable_copy(
    ctx: ListenerContext, action: BlockAction, keys: Keys, shown: str
) -> bool:
    """Return whether a click was on a usable message about a record or an outage.

    Raises:
        UserFacingError: it may have been, in a channel that Slack gave another id.
    """
    here = (action.channel, action.message_ts)
    if not all(here):
        return False
    # A copy that nobody registered (the answer to its posting was lost) becomes the
    # usable one when there is none; `posted` never replaces a registered one.
    store = ctx.service.store
    place = await store.cards.place(keys, shown)
    copies = place.copies if place else await store.copies.of_card(keys, shown)
    copy = copies.get(action.user)
    if copy is not None and copy.channel == action.channel:
        # Never registered as the card: a card that was lost is posted in its channel
        # again, which this would prevent.
        is_card = place is not None and (place.channel, place.ts) == here
        return is_card or await _is_own_copy(ctx, action, keys, shown, copy)
    if place is None:
        place = await store.cards.posted(
            keys, shown, channel=action.channel, ts=action.message_ts
        )
    elif place.ts == action.message_ts and place.channel != action.channel:
        place = await _moved(ctx, action, keys, place.collected or shown, place)
    # Compared with what the store holds after `posted`, never with what we wrote:
    # another click may have registered its copy first.
    return (place.channel, place.ts) == here


async def _moved(
    ctx: ListenerContext, action: BlockAction, keys: Keys, shown: str, was: CardPlace
) -> CardPlace:
    """Follow a card into its channel's new id; return where it is.

    A private channel gets another id once people of another workspace are invited to
    it, and Slack knows the old one no more. Its messages keep their ts, which nobody
    chooses and no other message of ours has. Slack is asked whether one is there: a
    place is never changed by what a payload says alone.
    https://docs.slack.dev/reference/events/channel_id_changed

    Raises:
        UserFacingError: Slack does not say.
    """
    try:
        await ctx.slack.ask(
            PERMALINK, channel=action.channel, message_ts=action.message_ts
        )
    except SlackError as error:
        if isinstance(error, SlackRefused) and error.error in _NOT_THERE:
            return was
        logger.warning("card.not_looked_for shown=%s why=%s", shown, error)
        raise UserFacingError(template(_NOT_LOOKED_FOR)) from None
    cards, here = ctx.service.store.cards, (action.channel, action.message_ts)
    logger.warning("card.moved shown=%s from=%s to=%s", shown, was.channel, here[0])
    # Its place is compared there: what a publisher registered meanwhile stays.
    tenant = ctx.config.tenant
    await cards.forget_message(keys, tenant, shown, (was.channel, was.ts))
    return await cards.posted(keys, shown, channel=here[0], ts=here[1])


async def _is_own_copy(
    ctx: ListenerContext,
    action: BlockAction,
    keys: Keys,
    shown: str,
    copy: CardCopy,
) -> bool:
    """Return whether a click in somebody's direct message was on their usable copy."""
    if copy.refused:
        return False
    if not copy.ts:
        # A copy was on its way there and nobody registered one: the answer to its
        # posting was lost. The first of them becomes the usable one, as of cards.
        store = ctx.service.store
        copy = await store.copies.posted(
            keys, shown, action.user, channel=action.channel, ts=action.message_ts
        )
        # It may show an older state, and no event may be left that has it drawn again.
        await store.cards.mark_outdated(keys, ctx.config.tenant, shown)
    return (copy.channel, copy.ts) == (action.channel, action.message_ts)
