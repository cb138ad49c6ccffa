"""Retry a failed run from the button on its message."""

from __future__ import annotations

import logging
from typing import LiteralString

from keyturn.bot.ids import Action, Sealed, verify_outage
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.router import Router
from keyturn.bot.listeners.usable_copy import is_usable_copy, redraw_replaced
from keyturn.bot.listeners.verify_click import read_seal
from keyturn.bot.payload import Clicked
from keyturn.bot.text_types import label, template
from keyturn.gateway.store.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.stalled import RunState, StalledRun

logger = logging.getLogger(__name__)

_OTHER_WORKSPACE: LiteralString = (
    "This message belongs to another workspace, so nothing was done."
)
_NOT_OURS: LiteralString = (
    "This button does not belong to this message, so nothing was done. Please use the "
    "newest message about this run."
)
_OVER: LiteralString = (
    "This run is not stopped any more: it went on, or it was dropped. Nothing was done."
)
_TRIED: LiteralString = (
    "This run is being tried again already. The message will show the result."
)
_TRYING: LiteralString = (
    "The run is being tried again. The message will show the result."
)
_BUSY: LiteralString = (
    "This run changes all the time, so nothing was done. Please try again in a moment."
)
_ATTEMPTS = 4


def register(router: Router) -> None:
    """Answer the button Try again."""
    router.on_action(Action.TRY_AGAIN, _try_again)


async def _try_again(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    outage = await _proven(ctx, clicked)
    # Between the read and the write a gateway may move the run; `retry` then writes
    # nothing. Read again a few times, and give up rather than hold the click.
    for _ in range(_ATTEMPTS):
        run = await _stopped(ctx, outage)
        scope = FreezeScope(kind=ScopeKind.AGENT, name=run.agent)
        reviewer = await ctx.resolve_freezer(*clicked.who, scope)
        forbidden = await ctx.service.runs.forbidden(run, reviewer)
        if forbidden is not None:
            logger.info("run.try_refused user=%s run=%s", reviewer.user, run.id)
            raise UserFacingError(label(forbidden.reason))
        by = f"{reviewer.team}/{reviewer.user}"
        if await ctx.service.runs.retry(run, by, clicked.gesture):
            return template(_TRYING)
    raise UserFacingError(template(_BUSY))


async def _proven(ctx: ListenerContext, clicked: Clicked) -> str:
    """Return the outage that a button of ours is about.

    Raises:
        UserFacingError: the button is not ours, or not on the newest message.
    """
    action = clicked.action
    if action.team != ctx.team:
        raise UserFacingError(template(_OTHER_WORKSPACE))
    sealed: Sealed = read_seal(action.value)
    accepted, team = ctx.config.seal_keys, ctx.team
    if not any(
        verify_outage(sealed, key=key, team=team, purpose=Action.TRY_AGAIN)
        for key in accepted
    ):
        logger.warning("click.refused why=bad_seal")
        raise UserFacingError(template(_NOT_OURS))
    # `seal_outage` writes the outage's id where a card's value has the approval's.
    outage = sealed.approval
    keys = ctx.service.store.keys_of_run(outage.partition(".")[0])
    if keys is None or not await is_usable_copy(ctx, action, keys, outage):
        logger.warning("click.refused why=other_copy outage=%s", outage)
        if keys is not None:
            await redraw_replaced(ctx, clicked, keys, outage)
        raise UserFacingError(template(_NOT_OURS))
    return outage


async def _stopped(ctx: ListenerContext, outage: str) -> StalledRun:
    """Return the run of an outage while it is parked.

    Raises:
        UserFacingError: it is not parked.
    """
    run = await ctx.service.runs.find(outage.partition(".")[0])
    # A later outage of the same run has a message of its own; this button must not
    # retry that one.
    if run is None or run.outage != outage:
        raise UserFacingError(template(_OVER))
    if run.state is not RunState.PARKED:
        raise UserFacingError(template(_TRIED))
    return run
