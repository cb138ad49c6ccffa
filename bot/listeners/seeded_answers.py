"""Count the answers to seeded defects, in place of the decisions that they look like.

A seeded defect has no record that could be decided. Until it is answered it can be read
like any other call.
"""

from __future__ import annotations

import logging

from keyturn.bot.cards.special_cards import (
    ENDED,
    NOT_HERE,
    TOLD_APPROVED,
    TOLD_NOTICED,
)
from keyturn.bot.delivery.seeded_defects import show_ended
from keyturn.bot.ids import Action
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import label
from keyturn.bot.web import SlackError
from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.service.submit.quality_checks import refusal
from keyturn.gateway.store.records.atomic_write import Loaded

logger = logging.getLogger(__name__)

_APPROVALS = frozenset({Action.APPROVE, Action.APPROVE_ROW})
_DECISIONS = _APPROVALS | {
    *(Action.EDIT, Action.CHOOSE_EDIT, Action.REJECT, Action.RESPOND)
}


async def seeded(ctx: ListenerContext, approval_id: str) -> Loaded | None:
    """Return the seeded defect with this id as its card shows it, or None."""
    card = (await ctx.service.seeded_defects.read()).card
    if card is None or card.shown.id != approval_id:
        return None
    return Loaded(card.shown, await ctx.now_ms())


async def answered(
    ctx: ListenerContext,
    approval_id: str,
    reviewer: Reviewer,
    *,
    has_approved: bool,
    at: tuple[str, str] = ("", ""),
) -> UserText | None:
    """Count a decision; return the reply to the person, or None for another call.

    Args:
        ctx: the listener's dependencies.
        approval_id: the approval that the person decided.
        reviewer: the person.
        has_approved: they did not notice the defect.
        at: channel and ts of the clicked message; there are two if the answer to a post
            was lost.

    Raises:
        UserFacingError: the person could not decide such a call.
        StoreUnavailable: the write is not confirmed.
    """
    defects = ctx.service.seeded_defects
    card = (await defects.read()).card
    if card is None or card.shown.id != approval_id:
        return None
    if (why := refusal(card, reviewer)) is not None:
        raise UserFacingError(label(why))
    if not await defects.answer(card, reviewer, has_approved=has_approved):
        return ENDED
    logger.info("seeded.answered approved=%s user=%s", has_approved, reviewer.user)
    ctx.tasks.later(_show_ended(ctx, *at), name="seeded")
    return TOLD_APPROVED if has_approved else TOLD_NOTICED


async def refuse_seeded(
    ctx: ListenerContext, loaded: Loaded, interaction: Clicked | Submitted, purpose: str
) -> None:
    """Count the use of a button or form of a seeded defect, unless it only reads.

    Raises:
        UserFacingError: the reply to the person.
    """
    if purpose == Action.VIEW_ALL:
        return
    at, has_approved = ("", ""), True
    if isinstance(interaction, Clicked):
        if purpose not in _DECISIONS:
            raise UserFacingError(NOT_HERE)
        at = (interaction.channel, interaction.message_ts)
        has_approved = purpose in _APPROVALS
    reviewer = await ctx.reviewer_of(*interaction.who, *loaded.approval.items)
    reviewer = reviewer.with_(gesture=interaction.gesture)
    said = await answered(
        ctx, loaded.approval.id, reviewer, has_approved=has_approved, at=at
    )
    raise UserFacingError(said or ENDED)


async def _show_ended(ctx: ListenerContext, channel: str, ts: str) -> None:
    ctx.home.changed.set()
    found = await ctx.service.seeded_defects.read()
    if found.card is None:
        return
    here = found.with_(channel=channel, ts=ts) if channel and ts else found
    try:
        # Immediately; the publisher repeats it, in case this is lost.
        await show_ended(ctx.slack, here, found.card)
    except SlackError as error:
        logger.warning("seeded.not_sent why=%s", error)
