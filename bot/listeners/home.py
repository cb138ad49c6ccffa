"""Publish the Home tab when somebody opens it."""

from __future__ import annotations

import logging

from bot import payload
from bot.blocks import (
    Block,
    Label,
    Template,
    channel,
    header,
    home,
    label,
    section,
    template,
)
from bot.desk import Desk
from bot.ids import View
from bot.listeners.doors import Doors
from bot.payload import HomeOpened, Json
from bot.web import SlackError

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
            view=_view(desk),
        )
    except SlackError as error:
        logger.warning("home.unpublished user=%s why=%s", opened.user, error)


def _view(desk: Desk) -> Block:
    return home(
        [
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
        ],
        callback_id=View.HOME,
    )


def _where(place: str) -> Template | Label:
    if not place:
        return template("Cards appear in the channels that the policy names.")
    if place.startswith("#"):
        return label(f"Cards appear in {place}.")
    return template("Cards appear in {where}.", where=channel(place))
