"""Record the answers to spot checks: two buttons ask whether a call was right."""

from __future__ import annotations

import logging

from keyturn.bot.ids import Action
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.router import on_action
from keyturn.bot.listeners.targets import verify_click
from keyturn.bot.payload import Clicked
from keyturn.bot.text import label, template

logger = logging.getLogger(__name__)

_THANKS = template("Recorded, thank you.")


@on_action(Action.CHECK_RIGHT, Action.CHECK_WRONG)
async def _answer_check(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    action = Action(clicked.action_id)
    target = await verify_click(ctx, clicked, action)
    check = target.item.spot_check
    roles = check.of if check else ()
    user, team = clicked.who
    checks = ctx.service.spot_checks
    groups = checks.usergroups(*roles)
    # Not fresh: it decides nothing, so an answer of Slack that is a minute old
    # suffices.
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
