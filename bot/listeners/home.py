"""Publish the Home tab when somebody opens it."""

from __future__ import annotations

import logging
from typing import cast

from bot import payload
from bot.blocks import (
    Block,
    Label,
    Template,
    channel,
    divider,
    header,
    label,
    section,
    slash_command,
    template,
)
from bot.cards import home
from bot.desk import Desk
from bot.listeners.doors import Doors
from bot.listeners.readable import Access, may_decide
from bot.payload import HomeOpened, Json
from bot.web import SlackError
from gateway.approvals.record import Approval, Item
from gateway.errors import StoreUnavailable

logger = logging.getLogger(__name__)


def register(doors: Doors) -> None:
    """Answer the opening of the Home tab."""
    doors.on_event("app_home_opened", _opened)


async def _opened(desk: Desk, body: Json) -> None:
    opened = payload.home_opened(body)
    if opened.tab == "home" and opened.team == desk.team:
        desk.tasks.later(_publish(desk, opened), name="home")


async def _publish(desk: Desk, opened: HomeOpened) -> None:
    try:
        await desk.slack.call(
            "views.publish",
            user_id=opened.user,
            hash=opened.view_hash or None,
            view=await _view(desk, opened),
        )
    except (SlackError, StoreUnavailable) as error:
        logger.warning("home.unpublished user=%s why=%s", opened.user, error)


async def _view(desk: Desk, opened: HomeOpened) -> Block:
    """Return the person's queue, and below it how this works."""
    mine: list[Approval] = []
    now_ms = 0
    is_complete = True
    for loaded in await desk.service.waiting():
        now_ms = loaded.now_ms
        access = await _access(desk, opened.user, loaded.approval)
        is_complete = is_complete and not access.is_open
        if access.is_given:
            shown = await desk.service.as_of_now(loaded)
            mine.append(shown.approval)
    view = home.home(
        mine,
        key=desk.config.seal_key,
        team=desk.team,
        now_ms=now_ms,
        is_complete=is_complete,
    )
    return {**view, "blocks": [*as_blocks(view["blocks"]), *_manual(desk)]}


async def _access(desk: Desk, user: str, approval: Approval) -> Access:
    """Return whether something of this waits for a person."""
    is_open = False
    for item in approval.items:
        if not item.is_pending or _has_voted(user, item):
            continue
        access = await may_decide(desk, user, desk.team, approval, item)
        if access.is_given:
            return access
        is_open = is_open or access.is_open
    return Access(is_given=False, is_open=is_open)


def _has_voted(user: str, item: Item) -> bool:
    votes = (vote for vote in item.votes if vote.action_hash == item.action_hash)
    return any(vote.by.user == user for vote in votes)


def _manual(desk: Desk) -> list[Block]:
    return [
        divider(),
        header(label("An agent turns one key, a person turns the other")),
        section(
            template(
                "When an agent wants to do something that needs a person, a card "
                "shows exactly what would run. It runs only if somebody who may "
                "decide approves it: once, and as shown."
            )
        ),
        section(_where(desk.config.home_channel)),
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
                command=slash_command(desk.config.command),
            )
        ),
    ]


def as_blocks(value: object) -> list[Block]:
    """Return the blocks of a view that was built here."""
    return cast("list[Block]", value)


def _where(place: str) -> Template | Label:
    if not place:
        return template("Cards appear in the channels that the policy names.")
    if place.startswith("#"):
        return label(f"Cards appear in {place}.")
    return template("Cards appear in {where}.", where=channel(place))
