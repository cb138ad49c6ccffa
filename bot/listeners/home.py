"""Publish the App Home tab when somebody opens or refreshes it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from twokey.bot import payload
from twokey.bot.blocks import divider, header, section
from twokey.bot.cards import home
from twokey.bot.ids import Action
from twokey.bot.interactions import Clicked
from twokey.bot.listener_context import ListenerContext
from twokey.bot.listeners.read_access import Access, may_decide
from twokey.bot.listeners.router import Router
from twokey.bot.objects import Block
from twokey.bot.payload import HomeOpened, Json
from twokey.bot.text_types import (
    Label,
    Template,
    channel,
    label,
    slash_command,
    template,
)
from twokey.bot.web import SlackError
from twokey.gateway.approvals.permission import denial_reason
from twokey.gateway.approvals.quorum import is_among
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.verbs import Verb
from twokey.gateway.service.queue import MAX_QUEUE
from twokey.gateway.store.atomic_write import Loaded

logger = logging.getLogger(__name__)


def register(router: Router) -> None:
    """Answer the opening of the Home tab, and its button Refresh."""
    router.on_event("app_home_opened", _opened)
    router.on_action(Action.REFRESH, _refresh)


async def _opened(ctx: ListenerContext, body: Json) -> None:
    opened = payload.home_opened(body)
    # The Messages tab sends the same event. Built after the answer: a queue of two
    # thousand takes longer than the three seconds that Slack waits.
    if opened.tab == "home" and opened.team == ctx.team:
        ctx.tasks.later(_publish(ctx, opened), name="home")


async def _refresh(ctx: ListenerContext, clicked: Clicked) -> None:
    action = clicked.action
    if action.is_home and action.team == ctx.team:
        opened = HomeOpened(
            team=action.team, user=action.user, tab="home", view_hash=action.view_hash
        )
        ctx.tasks.later(_publish(ctx, opened), name="home")


async def _publish(ctx: ListenerContext, opened: HomeOpened) -> None:
    try:
        await ctx.slack.call(
            "views.publish",
            user_id=opened.user,
            # Two quick openings build the tab side by side; Slack refuses the one whose
            # hash is old, so that a slow one cannot overwrite a newer list.
            hash=opened.view_hash or None,
            view=await _view(ctx, opened),
        )
    except (SlackError, StoreUnavailable) as error:
        logger.warning("home.unpublished user=%s why=%s", opened.user, error)


async def _view(ctx: ListenerContext, opened: HomeOpened) -> Block:
    """Return the person's queue, and below it how this works."""
    mine: list[Approval] = []
    own: list[Approval] = []
    now_ms = await ctx.service.store.conn.now_ms()
    looked_at = 0
    is_complete = True
    async for loaded in ctx.service.queue.waiting():
        looked_at += 1
        access = await _access(ctx, opened.user, loaded.approval)
        is_complete = is_complete and not access.is_unknown
        if access.is_given:
            mine.append(loaded.approval)
        elif await _may_end(ctx, opened.user, loaded.approval):
            own.append(loaded.approval)
    first = home.most_urgent(mine, now_ms)[: home.MAX_ROWS]
    # Only what is shown is judged by the policy of now: that asks the store for each.
    shown = [await ctx.service.as_of_now(Loaded(one, now_ms)) for one in first]
    view = home.home(
        [one.approval for one in shown],
        key=ctx.config.seal_key,
        team=ctx.team,
        now_ms=now_ms,
        is_complete=is_complete,
        others=len(mine) - len(first),
        looked_at=looked_at if looked_at >= MAX_QUEUE else 0,
        own=own,
        troubles=await _troubles(ctx, first),
    )
    return {**view, "blocks": [*cast("list[Block]", view["blocks"]), *_manual(ctx)]}


async def _troubles(ctx: ListenerContext, listed: Sequence[Approval]) -> dict[str, str]:
    """Return which cards are missing or old, and Slack's word for why."""
    cards = ctx.service.store.cards
    found = [(one.id, await cards.trouble(ctx.keys, one.id)) for one in listed]
    return {approval: trouble.why for approval, trouble in found if trouble}


async def _access(ctx: ListenerContext, user: str, approval: Approval) -> Access:
    """Return whether something of this waits for a person."""
    is_unknown = False
    for item in approval.items:
        if not item.is_pending or _has_voted(user, item):
            continue
        # The event does not name the person's home workspace. `users.info` does, so
        # nobody of another organization is taken for a member.
        access = await may_decide(ctx, user, approval, item)
        if access.is_given:
            return access
        is_unknown = is_unknown or access.is_unknown
    return Access(is_given=False, is_unknown=is_unknown)


async def _may_end(ctx: ListenerContext, user: str, approval: Approval) -> bool:
    """Return whether a person may reject what they asked for or changed here.

    Everybody else who may reject may approve as well, or has done so.
    """
    for item in approval.items:
        took_part = [*approval.principals, *item.principals]
        took_part += [item.edit.by] if item.edit else []
        person = Person(team=ctx.team, user=user)
        if not item.is_pending or Verb.REJECT not in item.allow:
            continue
        if not is_among(person, took_part) or _has_voted(user, item):
            continue
        reviewer = await ctx.reviewer_of(user, ctx.team, item)
        if denial_reason(approval, item, reviewer, Verb.REJECT) is None:
            return True
    return False


def _has_voted(user: str, item: Item) -> bool:
    # Only members of this workspace vote, so the user id alone names one.
    votes = (vote for vote in item.votes if vote.action_hash == item.action_hash)
    return any(vote.by.user == user for vote in votes)


def _manual(ctx: ListenerContext) -> list[Block]:
    return [
        divider(),
        header(label("How approvals work")),
        section(
            template(
                "When an agent wants to do something that needs a person, a card "
                "shows exactly what would run. It runs only if somebody who may "
                "decide approves it: once, and as shown."
            )
        ),
        section(_where(ctx.service.channel)),
        section(
            template(
                "*Approve* runs it as shown. *Edit* lets you change it first. "
                "*Reject* and *Respond* tell the agent why not."
            )
        ),
        section(
            template(
                "*I'm on it* tells the others that you look at it. *More time* lets "
                "it wait longer. `{command} delegate @colleague 4h` lets somebody "
                "decide in your place while you are away.",
                command=slash_command(ctx.config.command),
            )
        ),
    ]


def _where(place: str) -> Template | Label:
    if place.startswith("#"):
        return label(f"Cards appear in {place}, unless the policy names another place.")
    return template(
        "Cards appear in {where}, unless the policy names another place.",
        where=channel(place),
    )
