"""Hand a reviewer's queue to a colleague: `delegate @ben 4h`."""

from __future__ import annotations

import logging
import re
from typing import LiteralString

from twokey.bot.blocks import label, slash_command, template, user
from twokey.bot.cards.refs import when
from twokey.bot.desk import Calm, Desk, Said
from twokey.bot.payload import Command
from twokey.gateway.approvals.decisions import Standing
from twokey.gateway.policy.fields import parse_duration
from twokey.gateway.protocol.records import Person

logger = logging.getLogger(__name__)

_WORDS = re.compile(r"<@(?P<to>[UW][A-Z0-9]{1,30})(?:\|[^>]*)?>\s+(?P<time>\S+)")

_USAGE: LiteralString = (
    "Write `{command} delegate @colleague 4h` to let somebody decide in your place "
    "for a while, or `{command} delegate off` to end that."
)


async def delegated(desk: Desk, command: Command, rest: str) -> Said:
    """Do what was asked, and say so.

    Raises:
        Calm: says why not.
    """
    asker = await desk.reviewers.resolve(command.user, user_team=command.user_team)
    if asker.standing is not Standing.MEMBER:
        raise Calm(template("Only members of this workspace can hand over a queue."))
    owner = Person(team=desk.team, user=command.user, name=asker.name)
    if rest.lower() == "off":
        return await _taken_back(desk, owner)
    words = _WORDS.fullmatch(rest)
    if words is None:
        raise Calm(template(_USAGE, command=slash_command(desk.config.command)))
    return await _handed_over(desk, owner, words["to"], words["time"])


async def _taken_back(desk: Desk, owner: Person) -> Said:
    if await desk.service.delegations.take_back(owner):
        return template("Nobody decides in your place any more.")
    return template("Nobody was deciding in your place.")


async def _handed_over(desk: Desk, owner: Person, to: str, time: str) -> Said:
    colleague = await desk.reviewers.resolve(to, user_team=desk.team, fresh=True)
    if colleague.standing is Standing.UNKNOWN:
        raise Calm(template("Slack did not say who that is. Please try again."))
    if colleague.standing is not Standing.MEMBER:
        raise Calm(template("Only members of this workspace can decide for you."))
    try:
        until_ms = await desk.service.delegations.delegate(
            owner, to, parse_duration(time)
        )
    except ValueError as error:
        raise Calm(label(f"Nothing was changed: {error}")) from None
    logger.info("queue.delegated user=%s to=%s", owner.user, to)
    return template(
        "{who} may decide in your place until {at}. `{command} delegate off` ends it.",
        command=slash_command(desk.config.command),
        who=user(to),
        at=when(until_ms),
    )
