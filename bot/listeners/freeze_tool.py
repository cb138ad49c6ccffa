"""Freeze a tool from the notice of what it ran."""

from __future__ import annotations

import logging

from twokey.bot.blocks import label, template
from twokey.bot.desk import Calm, Desk, Said
from twokey.bot.gestures import Clicked
from twokey.bot.ids import Action
from twokey.bot.listeners.doors import Doors
from twokey.bot.listeners.noticed import seen_notice
from twokey.gateway.approvals.decisions import Forbidden
from twokey.gateway.store.freezes import Scope, ScopeKind

logger = logging.getLogger(__name__)


def register(doors: Doors) -> None:
    """Answer the button Freeze tool."""
    doors.on_action(Action.FREEZE_TOOL, _freeze)


async def _freeze(desk: Desk, clicked: Clicked) -> Said | None:
    notice, index = await seen_notice(desk, clicked, Action.FREEZE_TOOL)
    scope = Scope(kind=ScopeKind.TOOL, name=notice.calls[index or 0].tool)
    reviewer = await desk.stopper_of(*clicked.who, scope)
    reason = f"frozen from notice {notice.id}"
    result = await desk.service.stops.freeze(scope, reviewer, reason)
    if isinstance(result, Forbidden):
        logger.info("stop.refused user=%s notice=%s", reviewer.user, notice.id)
        raise Calm(label(result.reason))
    # The tool's name is the agent's text, and Slack reads this as markup.
    if not result:
        return template("This tool is frozen already; nothing changed.")
    return template(
        "The tool is frozen: nothing of it starts any more, for any agent. A message "
        "in the channel says how to lift that."
    )
