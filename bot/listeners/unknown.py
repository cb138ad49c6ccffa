"""Answer clicks and submissions that no other listener handles."""

from __future__ import annotations

import logging
import re

from twokey.bot.ids import Action
from twokey.bot.interactions import Clicked, Submitted
from twokey.bot.listener_context import ListenerContext, UserFacingError, UserText
from twokey.bot.listeners.router import AckBody, Router
from twokey.bot.payload import Json
from twokey.bot.text_types import template

logger = logging.getLogger(__name__)

_ANY = re.compile("")


def register(router: Router) -> None:
    """Answer everything, menus too; register this last."""
    router.on_menu(Action.MORE, _clicked)
    router.on_unknown(_clicked, _submitted)
    router.on_event(_ANY, _happened)


async def _clicked(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    del ctx
    logger.warning("click.unknown action=%r", clicked.action.action_id[:80])
    return template("This button is not known any more. Please use the newest card.")


async def _submitted(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    del ctx
    logger.warning("view.unknown callback=%r", submitted.view.callback_id[:80])
    raise UserFacingError(
        template("This form is not known any more. Please open it again.")
    )


async def _happened(ctx: ListenerContext, body: Json) -> None:
    del ctx, body
