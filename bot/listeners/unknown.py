"""Answer what no other listener knows: buttons and modals of an older version."""

from __future__ import annotations

import logging
import re

from twokey.bot.blocks import template
from twokey.bot.desk import Calm, Desk, Said
from twokey.bot.gestures import Clicked, Submitted
from twokey.bot.listeners.doors import Doors, Reply
from twokey.bot.payload import Json

logger = logging.getLogger(__name__)

_ANY = re.compile("")


def register(doors: Doors) -> None:
    """Answer everything; register this last."""
    doors.on_action(_ANY, _clicked)
    doors.on_submit(_ANY, _submitted)
    doors.on_event(_ANY, _happened)


async def _clicked(desk: Desk, clicked: Clicked) -> Said | None:
    del desk
    logger.warning("click.unknown action=%r", clicked.action.action_id[:80])
    return template("This button is not known any more. Please use the newest card.")


async def _submitted(desk: Desk, submitted: Submitted) -> Reply:
    del desk
    logger.warning("view.unknown callback=%r", submitted.view.callback_id[:80])
    raise Calm(template("This form is not known any more. Please open it again."))


async def _happened(desk: Desk, body: Json) -> None:
    del desk, body
