"""Verify clicks on a notification: who clicked, and that it was shown to them."""

from __future__ import annotations

import logging
from typing import LiteralString

from twokey.bot.blocks import template
from twokey.bot.gestures import Clicked
from twokey.bot.ids import Action, Sealed, View, verify_notice
from twokey.bot.listener_context import ListenerContext, UserFacingError
from twokey.bot.listeners.verify_click import read_seal
from twokey.gateway.approvals.decisions import AccountKind
from twokey.gateway.approvals.notice import Notice
from twokey.gateway.protocol.records import Person

logger = logging.getLogger(__name__)

_NOT_OURS: LiteralString = (
    "This button does not belong to this notice, so nothing was done. Please use the "
    "newest one."
)
_OTHER_WORKSPACE: LiteralString = (
    "This notice belongs to another workspace, so nothing was done."
)
_GONE: LiteralString = "This notice is not kept any more, so nothing was done."


async def seen_notice(
    ctx: ListenerContext, clicked: Clicked, purpose: Action
) -> tuple[Notice, int | None]:
    """Return the notice under a button, and which of its calls it is about.

    The value must be sealed for this notice, workspace and button, and the button
    must stand on the registered copy.

    Raises:
        UserFacingError: says why this is no click to act on.
    """
    action = clicked.action
    if action.team != ctx.team:
        raise UserFacingError(template(_OTHER_WORKSPACE))
    sealed = read_seal(action.value)
    notice = await proven_notice(ctx, sealed, purpose)
    # A copy that nobody registered (its answer was lost) becomes the one, as a card's.
    cards, here = ctx.service.store.cards, (action.channel, action.message_ts)
    place = await cards.place(ctx.keys, notice.id) or await cards.posted(
        ctx.keys, notice.id, channel=action.channel, ts=action.message_ts
    )
    if not all(here) or (place.channel, place.ts) != here:
        logger.warning("click.refused why=other_copy notice=%s", notice.id)
        raise UserFacingError(template(_NOT_OURS))
    return notice, sealed.index


async def proven_notice(
    ctx: ListenerContext, sealed: Sealed, purpose: Action | View
) -> Notice:
    """Return what a seal stands for, if we made it; raises `UserFacingError`."""
    notice = await ctx.service.notices.read(sealed.approval)
    if notice is None:
        raise UserFacingError(template(_GONE))
    accepted, team = ctx.config.seal_keys, ctx.team
    if not any(
        verify_notice(sealed, notice, key=key, team=team, purpose=purpose)
        for key in accepted
    ):
        logger.warning("click.refused why=bad_seal notice=%s", notice.id)
        raise UserFacingError(template(_NOT_OURS))
    return notice


async def member(ctx: ListenerContext, user: str, user_team: str) -> Person:
    """Return a member of the workspace, who may report.

    Raises:
        UserFacingError: they are no member, or Slack did not say.
    """
    found = await ctx.reviewers.resolve(user, user_team=user_team)
    if found.account is AccountKind.UNKNOWN:
        raise UserFacingError(
            template("Slack did not say who you are. Please try again.")
        )
    if found.account is not AccountKind.MEMBER:
        raise UserFacingError(
            template("Only members of this workspace can report this.")
        )
    return found.person
