"""Tell whether a click was on a message whose buttons count."""

from __future__ import annotations

import logging
from typing import LiteralString

from twokey.bot.listener_context import ListenerContext, UserFacingError
from twokey.bot.moved_cards import follow, is_there
from twokey.bot.payload import BlockAction
from twokey.bot.text_types import template
from twokey.bot.web import SlackError
from twokey.gateway.store.card_seals import CardCopy
from twokey.gateway.store.cards import CardPlace
from twokey.gateway.store.keys import Keys

logger = logging.getLogger(__name__)

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

    Raises:
        UserFacingError: Slack does not say whether it is there.
    """
    try:
        if not await is_there(ctx, action.channel, action.message_ts):
            return was
    except SlackError as error:
        logger.warning("card.not_looked_for shown=%s why=%s", shown, error)
        raise UserFacingError(template(_NOT_LOOKED_FOR)) from None
    return await follow(ctx, keys, shown, was, action.channel)


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
