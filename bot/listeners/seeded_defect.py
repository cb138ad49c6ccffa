"""Answer a click on the card of a seeded defect: count it, and say what it was.

No listener of a decision finds a record of it. The router asks here before it says that
a card is not known.
"""

from __future__ import annotations

import logging

from twokey.bot.cards.seeded_defect import ENDED, NOT_HERE, TOLD_APPROVED, TOLD_NOTICED
from twokey.bot.delivery.seeded_defects import show_ended
from twokey.bot.ids import Action, BadSeal, chosen, unseal, verify
from twokey.bot.interactions import Clicked
from twokey.bot.listener_context import ListenerContext, UserFacingError, UserText
from twokey.bot.listeners.router import Router
from twokey.bot.text_types import label
from twokey.bot.web import SlackError
from twokey.gateway.approvals.seeded import SeededCard
from twokey.gateway.service.seeded_defects import refusal

logger = logging.getLogger(__name__)

_DECISIONS = frozenset({Action.APPROVE, Action.EDIT, Action.REJECT, Action.RESPOND})


def register(router: Router) -> None:
    """Answer clicks on cards that no approval belongs to."""
    router.on_no_record(_answer)


async def _answer(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    """Return what to tell the person; None when the card is none of these."""
    seeded = ctx.service.seeded_defects
    found = await seeded.read()
    action = clicked.action
    name, value = action.action_id, action.value
    if name == Action.MORE:
        name, value = chosen(value)
    card = found.card
    if card is None or not _is_ours(ctx, card, name, value):
        return None
    if found.answer:
        return ENDED
    if name not in _DECISIONS:
        return NOT_HERE
    user, team = clicked.who
    item = card.shown.items[0]
    reviewer = await ctx.reviewer_of(user, team, item)
    if (why := refusal(card, reviewer)) is not None:
        raise UserFacingError(label(why))
    reviewer = reviewer.with_(gesture=clicked.gesture)
    has_approved = name == Action.APPROVE
    if not await seeded.answer(card, reviewer, has_approved=has_approved):
        return ENDED
    logger.info("seeded.answered approved=%s user=%s", has_approved, user)
    ctx.tasks.later(_show_ended(ctx, clicked, card), name="seeded")
    return TOLD_APPROVED if has_approved else TOLD_NOTICED


async def _show_ended(ctx: ListenerContext, clicked: Clicked, card: SeededCard) -> None:
    seeded = await ctx.service.seeded_defects.read()
    place = {"channel": clicked.action.channel, "ts": clicked.action.message_ts}
    try:
        # At once; the publisher does it again, should this be lost.
        await show_ended(ctx.slack, seeded.with_(**place), card)
    except SlackError as error:
        logger.warning("seeded.not_sent why=%s", error)


def _is_ours(ctx: ListenerContext, card: SeededCard, name: str, value: str) -> bool:
    """Return whether a button is one that we put on this card."""
    try:
        sealed = unseal(value)
    except BadSeal:
        return False
    return any(
        verify(sealed, card.shown, key=key, team=ctx.team, purpose=name)
        for key in ctx.config.seal_keys
    )
