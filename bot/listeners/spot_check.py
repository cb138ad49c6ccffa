"""Record what a person answers to a spot check, by one click on the card."""

from __future__ import annotations

import logging

from keyturn.bot.ids import Action
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.router import Router
from keyturn.bot.listeners.verify_click import verify_click
from keyturn.bot.payload import Clicked
from keyturn.bot.text_types import label, template

logger = logging.getLogger(__name__)

_THANKS = template("Recorded, thank you.")


def register(router: Router) -> None:
    """Answer the two buttons of a spot check."""
    router.on_action(Action.CHECK_RIGHT, _answer)
    router.on_action(Action.CHECK_WRONG, _answer)


async def _answer(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    action = Action(clicked.action.action_id)
    target = await verify_click(ctx, clicked, action)
    check = target.item.spot_check
    roles = check.of if check else ()
    user, team = clicked.who
    checks = ctx.service.spot_checks
    groups = checks.usergroups(*roles)
    # Not fresh: it decides nothing, so an answer of Slack that is a minute old will do.
    reviewer = await ctx.reviewers.resolve(
        user, user_team=team, groups=groups, fresh=False
    )
    why = await checks.answer(
        target.approval.id,
        target.item.index,
        reviewer.with_(gesture=clicked.gesture),
        is_right=action is Action.CHECK_RIGHT,
    )
    logger.info(
        "spot_check.answered answer=%s refused=%s approval=%s user=%s",
        action,
        bool(why),
        target.approval.id,
        user,
    )
    if why:
        raise UserFacingError(label(why))
    return _THANKS
