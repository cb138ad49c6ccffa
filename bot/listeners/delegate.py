"""Delegate a reviewer's queue to a colleague: `delegate @ben 4h`."""

from __future__ import annotations

import logging
import re
from typing import LiteralString

from twokey.bot.cards.refs import when
from twokey.bot.listener_context import ListenerContext, UserFacingError, UserText
from twokey.bot.payload import Command
from twokey.bot.text_types import label, slash_command, template, user
from twokey.gateway.approvals.decisions import Gesture
from twokey.gateway.durations import parse_duration
from twokey.gateway.protocol.records import Person

logger = logging.getLogger(__name__)

# The form of a mention; `require_member` asks Slack whether there is such a member.
_ARGUMENTS = re.compile(r"<@(?P<to>[UW][A-Z0-9]{1,30})(?:\|[^>]*)?>\s+(?P<time>\S+)")

_USAGE: LiteralString = (
    "Write `{command} delegate @colleague 4h` to let a colleague decide in your place "
    "for 4 hours, or `{command} delegate off` to end this."
)
_OUTSIDER = template("Only members of this workspace can delegate decisions.")


async def delegate(ctx: ListenerContext, command: Command, rest: str) -> UserText:
    """Start or end a delegation, and confirm it.

    Raises:
        UserFacingError: says why not.
    """
    asker = await ctx.require_member(command.who, _OUTSIDER)
    owner = Person(team=ctx.team, user=command.user, name=asker.name)
    if rest.lower() == "off":
        await ctx.ensure_first(command.digest)
        return await _ended(ctx, owner)
    found = _ARGUMENTS.fullmatch(rest)
    if found is None:
        raise UserFacingError(
            template(_USAGE, command=slash_command(ctx.config.command))
        )
    await ctx.ensure_first(command.digest)
    return await _started(ctx, owner, found["to"], found["time"])


async def _ended(ctx: ListenerContext, owner: Person) -> UserText:
    if await ctx.service.delegations.take_back(owner, gesture=Gesture.SLASH_COMMAND):
        return template("Nobody decides in your place any more.")
    return template("Nobody was deciding in your place; nothing changed.")


async def _started(ctx: ListenerContext, owner: Person, to: str, time: str) -> UserText:
    refusal = template("Only members of this workspace can decide in your place.")
    # Fresh: for hours the colleague decides in somebody's place, so an account that was
    # deactivated a minute ago must not get that.
    await ctx.require_member((to, ctx.team), refusal, asked="who that is", fresh=True)
    try:
        until_ms = await ctx.service.delegations.delegate(
            owner, to, parse_duration(time), gesture=Gesture.SLASH_COMMAND
        )
    except ValueError as error:
        raise UserFacingError(label(f"Nothing was changed: {error}")) from None
    logger.info("queue.delegated user=%s to=%s", owner.user, to)
    return template(
        "{who} may decide in your place until {at}; `{command} delegate off` ends "
        "this.",
        command=slash_command(ctx.config.command),
        who=user(to),
        at=when(until_ms),
    )
