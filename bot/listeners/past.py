"""Show the past decisions that a person may read, with a search."""

from __future__ import annotations

import time

from keyturn.bot.cards.past import MAX_PAST, Past, matches, past_blocks, past_modal
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext
from keyturn.bot.listeners.read_access import Access, reader_access
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.show import OUTSIDER
from keyturn.bot.listeners.views import open_modal
from keyturn.bot.modals.form import text_of
from keyturn.bot.payload import Clicked, Command, Submitted
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.service.queue import PastDecisions

_WITHIN_S = 1.5
"""How long decisions are looked at; Slack waits three seconds for the answer."""


def register(router: Router) -> None:
    """Answer the buttons on the Home tab, and the search."""
    router.on_action(Action.PAST, _open)
    router.on_action(Action.PAST_MINE, _open)
    router.on_submit(View.PAST, _search)
    router.on_submit(View.PAST_MINE, _search)


async def past_command(
    ctx: ListenerContext, command: Command, words: str, *, is_mine: bool
) -> AckBody:
    """Answer `/approvals history` and `/approvals mine` in a channel, to a member.

    Raises:
        UserFacingError: says why not.
    """
    await ctx.require_member(command.who, OUTSIDER)
    found = await _past(
        ctx, command.user, words, is_mine=is_mine, channel=command.channel
    )
    text = f"Decisions: {len(found.rows)}."
    return {"text": text, "blocks": past_blocks(found)}


async def _open(ctx: ListenerContext, clicked: Clicked) -> None:
    action = clicked.action
    if action.is_home and action.team == ctx.team:
        is_mine = action.action_id == Action.PAST_MINE
        found = await _past(ctx, action.user, "", is_mine=is_mine)
        await open_modal(ctx, clicked, past_modal(found))


async def _search(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    view = submitted.view
    # A view of another workspace shows nothing of this one.
    if view.team != ctx.team:
        return {}
    is_mine = view.callback_id == View.PAST_MINE
    words = text_of(view.values, Input.SEARCH)
    found = await _past(ctx, view.user, words, is_mine=is_mine)
    return {"response_action": "update", "view": past_modal(found)}


async def _past(
    ctx: ListenerContext, user: str, words: str, *, is_mine: bool, channel: str = ""
) -> Past:
    """Return the newest decisions that a person may read and that fit."""
    began = time.monotonic()
    rows: list[tuple[Event, Approval]] = []
    known: dict[str, Access] = {}
    is_cut = False
    past = PastDecisions(ctx.service.store, tenant=ctx.config.tenant)
    async for event, approval in past.newest():
        if len(rows) == MAX_PAST or time.monotonic() - began > _WITHIN_S:
            is_cut = True
            break
        # By the user id alone, as `Person.is_same`.
        is_theirs = event.actor.rpartition("/")[2] == user
        if (is_mine and not is_theirs) or not matches(event, approval, words):
            continue
        # A person who decided a call has seen it.
        if not is_theirs and approval.id not in known:
            known[approval.id] = await reader_access(ctx, user, channel, approval)
        if is_theirs or known[approval.id].is_given:
            rows.append((event, approval))
    is_unknown = any(one.is_unknown and not one.is_given for one in known.values())
    return Past(
        rows,
        words,
        is_mine,
        is_cut,
        is_complete=not is_unknown,
    )
