"""Answer the Home tab: its opening, its filters and pages, Approve in a row."""

from __future__ import annotations

import logging
from collections.abc import Callable

from twokey.bot import payload
from twokey.bot.cards.home_filter import FIRST, ON, name_in
from twokey.bot.cards.queue import HomeFilter, decidable_in_row
from twokey.bot.ids import Action
from twokey.bot.interactions import Clicked
from twokey.bot.listener_context import ListenerContext, UserFacingError, UserText
from twokey.bot.listeners.home_tab import filter_of, show
from twokey.bot.listeners.router import Router
from twokey.bot.listeners.verify_click import decide, outcome_reply, verify_click
from twokey.bot.payload import Json
from twokey.bot.text_types import template
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store.atomic_write import Loaded

logger = logging.getLogger(__name__)

_FILTERS: dict[Action, Callable[[HomeFilter, str], HomeFilter]] = {
    Action.FILTER_TOOL: lambda chosen, value: chosen.with_(tool=name_in(value)),
    Action.FILTER_AGENT: lambda chosen, value: chosen.with_(agent=name_in(value)),
    Action.FILTER_TIER: lambda chosen, value: chosen.with_(tier=name_in(value)),
    Action.FILTER_MINE: lambda chosen, value: chosen.with_(is_mine=value == ON),
}
_MOST_OF_A_MARK = 200
_TURNS = (Action.HOME_BACK, Action.HOME_NEXT)


def register(router: Router) -> None:
    """Answer the opening of the Home tab, and what is clicked on it."""
    router.on_event("app_home_opened", _opened)
    router.on_action(Action.REFRESH, _use)
    router.on_action(Action.APPROVE_ROW, _approve)
    for action in (*_FILTERS, *_TURNS):
        router.on_action(action, _use)


async def _opened(ctx: ListenerContext, body: Json) -> None:
    opened = payload.home_opened(body)
    # The Messages tab sends the same event.
    if opened.tab == "home" and opened.team == ctx.team:
        ctx.tasks.later(_used_and_shown(ctx, opened.user), name="home")


async def _use(ctx: ListenerContext, clicked: Clicked) -> None:
    """Filter, turn the page, or show the tab as it is now."""
    action = clicked.action
    if not action.is_home or action.team != ctx.team:
        return
    used = _used_and_shown(ctx, action.user, action.action_id, action.value)
    ctx.tasks.later(used, name="home")


async def _used_and_shown(
    ctx: ListenerContext, user: str, action: str = "", value: str = ""
) -> None:
    """Note the use of a tab and show it: after the answer, as a long queue takes long.

    Slack waits three seconds, and a queue of two thousand takes longer to read.
    """
    tabs, tenant = ctx.service.store.home_tabs, ctx.config.tenant
    try:
        before, _, _ = await tabs.tab(ctx.keys, tenant, user)
        after = _used(filter_of(before), action, value)
        await tabs.used(ctx.keys, tenant, user, after.model_dump_json())
    except StoreUnavailable as error:
        logger.warning("home.unpublished user=%s why=%s", user, error)
        return
    await show(ctx, user)


def _used(chosen: HomeFilter, action: str, value: str) -> HomeFilter:
    """Return the filter and the page after a click on a tab."""
    if action in _TURNS:
        is_first = value == FIRST or len(value) > _MOST_OF_A_MARK
        return chosen.with_(after="" if is_first else value)
    if action in {str(each) for each in _FILTERS}:
        after = _FILTERS[Action(action)](chosen, value)
        # Another filter has other pages.
        return after.with_(after="")
    return chosen


async def _approve(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.APPROVE_ROW)
    now = await ctx.service.as_of_now(Loaded(target.approval, target.now_ms))
    # Computed from the record as it stands: what the row showed may be older.
    item = decidable_in_row(now.approval)
    if target.item.is_pending and (item is None or item.index != target.index):
        raise UserFacingError(
            template(
                "Nothing was recorded: there is more to see about this call now than "
                "its row shows. Please press Full details and decide there."
            )
        )
    outcome = await decide(ctx, target, Approve(), clicked)
    ctx.tasks.later(show(ctx, clicked.action.user), name="home")
    return outcome_reply(outcome, now_ms=target.now_ms)
