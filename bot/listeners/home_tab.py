"""Show a person's Home tab, answer clicks on it, and keep open ones up to date.

A tab is published under the hash of the view that it replaces: of two concurrent
updates Slack refuses the outdated one, and it is made again. One process follows
changes, the one that publishes the outbox. It reads each approval once for all open
tabs, publishes a tab only if its content changed, and pauses longer than its reading
took.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from keyturn.bot.blocks import Block
from keyturn.bot.cards.home import AS_OF, FIRST, home, manual, name_in
from keyturn.bot.cards.queue import HomeFilter, decidable_in_row, page_of
from keyturn.bot.ids import Action
from keyturn.bot.limits import PUBLISH, RESERVED
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.reading import PersonQueue, queue_of
from keyturn.bot.listeners.router import on_action, on_event
from keyturn.bot.listeners.targets import decide, outcome_reply, verify_click
from keyturn.bot.payload import Clicked, Json
from keyturn.bot.web import RateLimited, SlackError, SlackRefused, text_at
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.reviewers.bot_records import HomeTab, ShownTab

logger = logging.getLogger(__name__)

MAX_TABS = 50
"""Maximum number of tabs that are kept up to date: the most recently used ones."""

PAUSE_S = 1.0
"""Minimum time between two checks for changes."""

_PAUSE_SHARE = 3
"""Ratio of the pause after a check to the time of the check."""

_TRIES = 3


async def show(ctx: ListenerContext, user: str) -> None:
    """Publish a person's tab now; failures are logged."""
    async with ctx.home.next_update(user) as is_mine:
        try:
            for _ in range(_TRIES if is_mine else 0):
                await ctx.home.wait_for_limit()
                if await _updated(ctx, user, {}, is_requested=True):
                    return
        except StoreUnavailable as error:
            logger.warning("home.unpublished user=%s why=%s", user, error)
        if is_mine:
            # The person is waiting for it: it is retried together with the open tabs.
            ctx.home.changed.set()


async def follow(ctx: ListenerContext) -> None:
    """Keep open tabs up to date until cancelled."""
    while True:
        await ctx.home.changed.wait()
        # Cleared before the check: a change during it has to cause another one.
        ctx.home.changed.clear()
        began = time.monotonic()
        try:
            await _follow_changes(ctx)
        except StoreUnavailable as error:
            logger.warning("home.not_followed why=%s", error)
            ctx.home.changed.set()
        except any_failure() as error:  # tabs are shown without it
            log_failure(logger, error, "home.follow_failed")
        # A long queue takes long to read: this uses at most a quarter of the time.
        pause_s = max(PAUSE_S, _PAUSE_SHARE * (time.monotonic() - began))
        await asyncio.sleep(pause_s)


async def _follow_changes(ctx: ListenerContext) -> None:
    tabs = ctx.service.store.home_tabs
    users = await tabs.open_tabs(ctx.keys, MAX_TABS)
    if not users:
        return
    # Read once for all of them: people with the same role have the same queue.
    read: dict[str, Loaded] = {}
    for user in users:
        async with ctx.home.next_update(user) as is_mine:
            # Otherwise another update of this person is waiting, and shows everything.
            if is_mine and not await _updated(ctx, user, read):
                ctx.home.changed.set()


async def _updated(
    ctx: ListenerContext,
    user: str,
    read: dict[str, Loaded],
    *,
    is_requested: bool = False,
) -> bool:
    """Bring one tab up to date; False if it must be retried.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    try:
        return await _published(ctx, user, read, is_requested=is_requested)
    except SlackRefused as error:
        # A retry would be refused, too: the person has left, or the tab was switched
        # off.
        logger.warning("home.forgotten user=%s why=%s", user, error)
        await ctx.service.store.home_tabs.forget(ctx.keys, user)
        return True
    except SlackError as error:
        logger.warning("home.unpublished user=%s why=%s", user, error)
        return False


async def _published(
    ctx: ListenerContext, user: str, read: dict[str, Loaded], *, is_requested: bool
) -> bool:
    """Publish one tab; False if it has to be made again.

    Raises:
        SlackError: Slack refused it or did not answer.
        StoreUnavailable: the store does not answer.
    """
    tabs = ctx.service.store.home_tabs
    # The hash from before the tab is made: a concurrent update is then newer.
    tab, before, now_ms = await tabs.tab(ctx.keys, user)
    found = await queue_of(ctx, user, read, is_glance=not is_requested)
    view = await _view(ctx, tab, found, now_ms=now_ms)
    content = _content(view)
    if not is_requested and content == before.content:
        return True
    # An unrequested update needs more tokens of the rate limit.
    if not is_requested and ctx.home.limits.take(PUBLISH, keep=RESERVED):
        return False
    try:
        reply = await ctx.slack.call(
            PUBLISH, user_id=user, hash=before.view_hash or None, view=view
        )
    except RateLimited as error:
        ctx.home.limits.refused(PUBLISH, "", error.retry_after_s)
        return False
    except SlackRefused as error:
        if error.error != "hash_conflict":
            raise
        # The process that published in the meantime stores its hash. It is deleted
        # here, so that a crash of that process does not leave the tab outdated for
        # ever.
        await tabs.shown(ctx.keys, user, ShownTab())
        return False
    shown = ShownTab(view_hash=text_at(reply, "view", "hash"), content=content)
    await tabs.shown(ctx.keys, user, shown)
    return True


async def _view(
    ctx: ListenerContext, tab: HomeTab, found: PersonQueue, *, now_ms: int
) -> Block:
    """Return a person's queue, and below it an explanation."""
    chosen = filter_of(tab)
    page = page_of(found.mine, chosen=chosen, calls=found.calls)
    # Only the visible approvals are evaluated by the current policy, because each needs
    # the store.
    evaluated = {
        one.id: (await ctx.service.as_of_now(Loaded(one, now_ms))).approval
        for one in page.approvals
    }
    return home(
        page.showing(evaluated),
        key=ctx.config.seal_key,
        team=ctx.team,
        now_ms=now_ms,
        chosen=chosen,
        until_ms=tab.until_ms,
        is_complete=found.is_complete,
        looked_at=found.looked_at,
        own=found.own,
        troubles=await _troubles(ctx, page.approvals),
        manual=manual(ctx.service.policy_now.defaults.channel, ctx.config.command),
    )


def filter_of(tab: HomeTab) -> HomeFilter:
    """Return a person's filter; none if another version stored it."""
    with suppress(ValueError):
        return HomeFilter.model_validate_json(tab.settings or "{}")
    return HomeFilter()


async def _troubles(ctx: ListenerContext, listed: Sequence[Approval]) -> dict[str, str]:
    """Return the missing or outdated cards, with Slack's error."""
    cards = ctx.service.store.cards
    keys_of = ctx.service.store.keys_of_approval
    found = [
        (one.id, await cards.trouble(keys_of(one.id) or ctx.keys, one.id))
        for one in listed
    ]
    return {approval: trouble.why for approval, trouble in found if trouble}


def _content(view: Block) -> str:
    """Return a digest of a tab's content, without the time of its creation."""
    blocks = cast("list[Block]", view["blocks"])
    compared = [block for block in blocks if block.get("block_id") != AS_OF]
    return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()


_FILTERS: dict[Action, str] = {
    Action.FILTER_TOOL: "tool",
    Action.FILTER_AGENT: "agent",
    Action.FILTER_TIER: "tier",
}
_MOST_OF_A_MARK = 200
_TURNS = (Action.HOME_BACK, Action.HOME_NEXT)


@on_event("app_home_opened")
async def _opened(ctx: ListenerContext, body: Json) -> None:
    user, tab = text_at(body, "event", "user"), text_at(body, "event", "tab")
    # The Messages tab sends the same event.
    if user and tab in {"", "home"} and body.get("team_id") == ctx.team:
        ctx.tasks.later(_used_and_shown(ctx, user), name="home")


@on_action(Action.REFRESH, *_FILTERS, *_TURNS)
async def _use(ctx: ListenerContext, clicked: Clicked) -> None:
    """Filter, turn the page, or refresh the tab."""
    if not clicked.is_home or clicked.team != ctx.team:
        return
    used = _used_and_shown(ctx, clicked.user, clicked.action_id, clicked.value)
    ctx.tasks.later(used, name="home")


async def _used_and_shown(
    ctx: ListenerContext, user: str, action: str = "", value: str = ""
) -> None:
    """Record the use of a tab and show it, after the acknowledgement.

    Slack waits three seconds, and a queue of two thousand takes longer to read.
    """
    tabs = ctx.service.store.home_tabs
    try:
        before, _, _ = await tabs.tab(ctx.keys, user)
        after = _used(filter_of(before), action, value)
        await tabs.used(ctx.keys, user, after.model_dump_json())
    except StoreUnavailable as error:
        logger.warning("home.unpublished user=%s why=%s", user, error)
        return
    await show(ctx, user)


def _used(chosen: HomeFilter, action: str, value: str) -> HomeFilter:
    """Return the filter and the page after a click on a tab."""
    if action in _TURNS:
        is_first = value == FIRST or len(value) > _MOST_OF_A_MARK
        return chosen.with_(after="" if is_first else value)
    if action in _FILTERS:
        # Another filter has other pages.
        return chosen.with_(**{_FILTERS[Action(action)]: name_in(value)}, after="")
    return chosen


@on_action(Action.APPROVE_ROW)
async def _approve(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.APPROVE_ROW)
    now = await ctx.service.as_of_now(Loaded(target.approval, target.now_ms))
    # Computed from the current record: the row may be older.
    item = decidable_in_row(now.approval)
    if target.item.is_pending and (item is None or item.index != target.index):
        raise UserFacingError(
            "Nothing was recorded: the row no longer shows everything. Please "
            "press Full details and decide there."
        )
    outcome = await decide(ctx, target, Approve(), clicked)
    ctx.tasks.later(show(ctx, clicked.user), name="home")
    return outcome_reply(outcome)
