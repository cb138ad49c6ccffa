"""Answer the slash command, to the person who typed it alone."""

from __future__ import annotations

import logging

from bot.blocks import template
from bot.cards.approval import fallback
from bot.cards.outcome import explained
from bot.desk import Calm, Desk, spoken
from bot.ids import COMMAND
from bot.listeners.delegate import delegated
from bot.listeners.doors import Doors, Reply
from bot.payload import Command
from gateway.approvals.decisions import Unknown

logger = logging.getLogger(__name__)

_MAX_LISTED = 20

_HELP = template(
    "*What I do:* I show what an AI agent wants to do, and it happens only if one of "
    "you approves it.\n"
    "• `/approvals list` says what waits.\n"
    "• `/approvals show ap_…` says where an approval stands; its id is on the card.\n"
    "• `/approvals delegate @colleague 4h` lets somebody decide in your place for a "
    "while; `/approvals delegate off` ends that.\n"
    "• `/approvals help` says this.\n"
    "Mention me in a channel to ask an agent for something."
)


def register(doors: Doors) -> None:
    """Answer /approvals."""
    doors.on_command(COMMAND, _command)


async def _command(desk: Desk, command: Command) -> Reply:
    if command.team != desk.team:
        raise Calm(template("I serve another workspace, so I cannot answer here."))
    verb, _, rest = command.text.strip().partition(" ")
    if verb.lower() == "show" and rest.strip():
        return {"text": await _shown(desk, rest.strip().strip("`"))}
    if verb.lower() == "list":
        return {"text": await _listed(desk)}
    if verb.lower() == "delegate":
        return {"text": spoken(await delegated(desk, command, rest.strip()))}
    return {"text": spoken(_HELP)}


async def _shown(desk: Desk, approval_id: str) -> str:
    loaded = await desk.service.read(approval_id)
    if loaded is None:
        return spoken(explained(Unknown(), now_ms=0))
    return fallback(loaded.approval)


async def _listed(desk: Desk) -> str:
    waiting = [loaded.approval for loaded in await desk.service.waiting()]
    if not waiting:
        return spoken(template("Nothing waits for anybody."))
    shown = "\n".join(f"• {fallback(approval)}" for approval in waiting[:_MAX_LISTED])
    more = len(waiting) - _MAX_LISTED
    return f"{shown}\n… and {more} more." if more > 0 else shown
