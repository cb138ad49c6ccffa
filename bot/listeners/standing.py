"""Revoke or list standing approvals, list what they covered, check their givers.

A standing approval whose givers Slack did not confirm for some minutes covers no call:
calls go to people as ever.
"""

from __future__ import annotations

import asyncio
import logging

from keyturn.bot.blocks import Block, context, first_rows, section
from keyturn.bot.cards.refs import people, short_ref, when
from keyturn.bot.cards.standing_card import left_text
from keyturn.bot.ids import Action
from keyturn.bot.listener_context import (
    ListenerContext,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from keyturn.bot.listeners.read_access import access_to
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import verify_click
from keyturn.bot.listeners.views import open_modal
from keyturn.bot.modals import allow_similar
from keyturn.bot.payload import Clicked, Command
from keyturn.bot.text import fit
from keyturn.bot.text_types import joined, label, template, untrusted
from keyturn.gateway.approvals.decisions import Forbidden
from keyturn.gateway.approvals.membership import age_ms
from keyturn.gateway.approvals.record import Approval, approval_of
from keyturn.gateway.approvals.standing import bounds_of, givers
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure

logger = logging.getLogger(__name__)

_OVER = template("This has ended already; nothing changed.")


def register(router: Router) -> None:
    """Answer the buttons Revoke and Uses."""
    router.on_action(Action.REVOKE, _revoke)
    router.on_action(Action.USES, _list)


async def _revoke(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.REVOKE)
    # Stopping takes less than giving: what Slack said within a minute is good enough.
    by = await ctx.reviewer_of(*clicked.who, target.item)
    result = await ctx.service.standing.revoke(
        target.approval.id, by.with_(gesture=clicked.gesture)
    )
    if isinstance(result, Forbidden):
        logger.info("standing.refused user=%s approval=%s", by.user, target.approval.id)
        raise UserFacingError(label(result.reason))
    return None if result else _OVER


async def _list(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.USES)
    ids = [use.item for use in allow_similar.newest_uses(target.approval)]
    approvals = dict.fromkeys(approval_of(one)[0] for one in ids)
    found = await ctx.service.queue.read_each(approvals)
    items = {item.id: item for one in found for item in one.approval.items}
    await open_modal(ctx, clicked, allow_similar.uses_list(target.approval, items))


EVERY_S = 60.0
"""Between two looks; Slack's word is good for ten minutes, see `CHECKED_FOR_MS`."""


async def check_givers(ctx: ListenerContext) -> None:
    """Look after the standing approvals until cancelled."""
    while True:
        try:
            await check_once(ctx)
        except StoreUnavailable as error:
            logger.warning("standing.not_checked why=%s", error)
        except any_failure() as error:  # the next look may do better
            log_failure(logger, error, "standing.check_failed")
        await asyncio.sleep(EVERY_S)


async def check_once(ctx: ListenerContext) -> None:
    """End what has to end, and confirm the givers of all others.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    async for loaded in ctx.service.standing.in_force():
        await _check(ctx, loaded.approval)


async def _check(ctx: ListenerContext, standing: Approval) -> None:
    item = standing.items[0]
    now_ms = await ctx.now_ms()
    users = dict.fromkeys(vote.by.user for vote in item.votes_now)
    people = [await ctx.reviewer_of(user, ctx.team, item) for user in users]
    # Slack's answers may be a minute old: the oldest of them counts.
    oldest_ms = max((age_ms(one) for one in people), default=0)
    await ctx.service.standing.confirm(standing, people, asked_ms=now_ms - oldest_ms)


_OUTSIDER = template("Only members of this workspace can see standing approvals.")
_NONE = template("No standing approvals here.")
_MOST = 15
_NAME = 60


async def list_standing(ctx: ListenerContext, command: Command, _: str) -> AckBody:
    """List those that the person who typed the command may read, by their end.

    Raises:
        UserFacingError: says why not.
    """
    await ctx.require_member(command.who, _OUTSIDER)
    found = [
        loaded.approval
        async for loaded in ctx.service.standing.in_force()
        if (await access_to(ctx, command, loaded.approval)).is_given
    ]
    if not found:
        return {"text": to_mrkdwn(_NONE)}
    blocks = first_rows([*map(_rows, found)], _MOST)
    return {"text": f"Standing approvals in force: {len(found)}.", "blocks": blocks}


def _rows(standing: Approval) -> list[Block]:
    bounds = bounds_of(standing)
    name = f"{fit(bounds.tool, _NAME)}, by {fit(bounds.agent, _NAME)}"
    by = joined("", [template("Given by "), people(givers(standing))])
    until = template("until {at}", at=when(bounds.until_ms))
    ids = template("{id}", id=short_ref(standing.id))
    return [
        section(untrusted(name)),
        context(label(left_text(standing)), until, by, ids),
    ]
