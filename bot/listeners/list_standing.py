"""Answer ``/approvals standing``: which standing approvals are in force."""

from __future__ import annotations

from twokey.bot.blocks import context, first_rows, section
from twokey.bot.cards.refs import people, short_ref, when
from twokey.bot.cards.standing_card import left_text
from twokey.bot.listener_context import ListenerContext, to_mrkdwn
from twokey.bot.listeners.read_access import access_to
from twokey.bot.listeners.router import AckBody
from twokey.bot.objects import Block
from twokey.bot.payload import Command
from twokey.bot.text import fit
from twokey.bot.text_types import joined, label, template, untrusted
from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.standing import bounds_of, givers

_OUTSIDER = template("Only members of this workspace can see standing approvals.")
_NONE = template(
    "No standing approval is in force that you could give, or that has its card in "
    "this channel."
)
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
