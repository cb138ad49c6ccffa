"""Try a run again that has stopped."""

from __future__ import annotations

import logging
from typing import LiteralString

from twokey.bot.blocks import label, template
from twokey.bot.desk import Calm, Desk, Said
from twokey.bot.gestures import Clicked
from twokey.bot.ids import Action, Sealed, verify_outage
from twokey.bot.listeners.doors import Doors
from twokey.bot.listeners.verify_click import read_seal
from twokey.gateway.store.freezes import Scope, ScopeKind
from twokey.gateway.store.stalled import RunState, StalledRun

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
    "This run is being tried again already. The message shows what comes of it."
)
_TRYING: LiteralString = (
    "The run is tried again now. The message shows what comes of it."
)
_BUSY: LiteralString = (
    "This run changes all the time, so nothing was done. Please try again in a moment."
)
_ATTEMPTS = 4


def register(doors: Doors) -> None:
    """Answer the button Try again."""
    doors.on_action(Action.TRY_AGAIN, _try_again)


async def _try_again(desk: Desk, clicked: Clicked) -> Said | None:
    outage = await _proven(desk, clicked)
    for _ in range(_ATTEMPTS):
        run = await _stopped(desk, outage)
        scope = Scope(kind=ScopeKind.AGENT, name=run.agent)
        reviewer = await desk.stopper_of(*clicked.who, scope)
        forbidden = await desk.service.runs.forbidden(run, reviewer)
        if forbidden is not None:
            logger.info("run.try_refused user=%s run=%s", reviewer.user, run.id)
            raise Calm(label(forbidden.reason))
        if await desk.service.runs.retry(run, f"{reviewer.team}/{reviewer.user}"):
            return template(_TRYING)
    raise Calm(template(_BUSY))


async def _proven(desk: Desk, clicked: Clicked) -> str:
    """Return the outage that a button of ours is about; raises `Calm` for others."""
    action = clicked.action
    if action.team != desk.team:
        raise Calm(template(_OTHER_WORKSPACE))
    sealed: Sealed = read_seal(action.value)
    accepted, team = desk.config.seal_keys, desk.team
    if not any(
        verify_outage(sealed, key=key, team=team, purpose=Action.TRY_AGAIN)
        for key in accepted
    ):
        logger.warning("click.refused why=bad_seal")
        raise Calm(template(_NOT_OURS))
    outage, here = sealed.approval, (action.channel, action.message_ts)
    # A copy that nobody registered (its answer was lost) becomes the one, as a card's.
    cards = desk.service.store.cards
    place = await cards.place(desk.keys, outage) or await cards.posted(
        desk.keys, outage, channel=action.channel, ts=action.message_ts
    )
    if not all(here) or (place.channel, place.ts) != here:
        logger.warning("click.refused why=other_copy outage=%s", outage)
        raise Calm(template(_NOT_OURS))
    return outage


async def _stopped(desk: Desk, outage: str) -> StalledRun:
    """Return the run of an outage while it is parked; raises `Calm` otherwise."""
    run = await desk.service.runs.find(outage.partition(".")[0])
    if run is None or run.outage != outage:
        raise Calm(template(_OVER))
    if run.state is not RunState.PARKED:
        raise Calm(template(_TRIED))
    return run
