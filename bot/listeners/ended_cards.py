"""Redraw the card of an ended approval that still shows buttons.

Slack refuses to change a card in a channel that is archived or that the bot has left.
After the end of its approval the card is not tried again, so when the channel is open
again it shows what was true before. Whoever clicks on it has it drawn.
"""

from __future__ import annotations

from twokey.bot.cards.undelivered import is_over
from twokey.bot.listener_context import ListenerContext
from twokey.gateway.approvals.collected import is_collected
from twokey.gateway.approvals.record import Approval
from twokey.gateway.store.keys import Keys


async def redraw_ended(ctx: ListenerContext, keys: Keys, approval: Approval) -> None:
    """Note that a card is outdated if its approval ended after it was drawn."""
    # A card that people wait for is tried until it shows what is so.
    if not is_over(approval) or approval.is_auto_approved or is_collected(approval):
        return
    cards = ctx.service.store.cards
    place = await cards.place(keys, approval.id)
    # A summary and a collected card show many approvals: that of one replaces neither.
    if place is None or place.is_in_summary or place.collected:
        return
    if place.rev >= approval.rev:
        return
    await cards.mark_outdated(keys, ctx.config.tenant, approval.id)
