"""Check regularly with Slack that givers of standing approvals still hold their roles.

Where Slack does not answer, nothing is noted: after some minutes without its word
no standing approval covers a call, and calls go to people as ever.
"""

from __future__ import annotations

import asyncio
import logging

from twokey.bot.listener_context import ListenerContext
from twokey.gateway.approvals.membership import age_ms
from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.failures import log_failure

logger = logging.getLogger(__name__)

EVERY_S = 60.0
"""Between two looks; Slack's word is good for ten minutes, see `CHECKED_FOR_MS`."""


async def check_givers(ctx: ListenerContext) -> None:
    """Look after the standing approvals until cancelled."""
    while True:
        try:
            await check_once(ctx)
        except StoreUnavailable as error:
            logger.warning("standing.not_checked why=%s", error)
        except Exception as error:  # noqa: BLE001 - the next look may do better
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
