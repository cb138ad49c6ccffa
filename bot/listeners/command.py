"""Answer the slash command with an ephemeral message."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, LiteralString, TypeAlias, TypeVar

from twokey.bot.blocks import section
from twokey.bot.listener_context import (
    ListenerContext,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from twokey.bot.listeners import waiting
from twokey.bot.listeners.delegate import delegate
from twokey.bot.listeners.freeze_command import freeze, list_freezes, unfreeze
from twokey.bot.listeners.list_standing import list_standing
from twokey.bot.listeners.past import past_command
from twokey.bot.listeners.read_access import access_to
from twokey.bot.listeners.router import AckBody, Router
from twokey.bot.listeners.show import OUTSIDER, line, show
from twokey.bot.listeners.stats import stats_command
from twokey.bot.payload import Command
from twokey.bot.text import first_word
from twokey.bot.text_types import Label, Template, joined, slash_command, template
from twokey.gateway.service.queue import MAX_QUEUE
from twokey.gateway.store.atomic_write import Loaded

logger = logging.getLogger(__name__)

_MAX_LISTED = 20

_NOTHING = template(
    "Nothing is waiting: no approval that you can decide, that you asked for, or that "
    "has its card in this channel."
)
_MAYBE_MORE = template(
    "This list may be incomplete: Slack did not say which user groups you are in. "
    "Please try again in a moment."
)
_CUT: LiteralString = (
    "This list may be incomplete: only the {count} approvals that expire first were "
    "checked."
)
_CUT_HERE: LiteralString = (
    "Of what only has its card in this channel, the {count} approvals that expire "
    "first were checked."
)
_UNKNOWN = template("I do not know this command.")


def _help(ctx: ListenerContext) -> Template:
    return template(_WHAT_I_DO, command=slash_command(ctx.config.command))


_WHAT_I_DO: LiteralString = (
    "*What I do:* I show you what an AI agent wants to run. It runs only if people "
    "approve it.\n"
    "• `{command} list` lists the waiting approvals that you can decide, that you "
    "asked for, or that have their card in this channel.\n"
    "• `{command} show ID` shows the state of one of them; its card shows the id, such "
    "as `145163ba`, below its title.\n"
    "• `{command} history` lists the newest decisions that you may read, and "
    "`{command} mine` those that you made; words after it search in them.\n"
    "• `{command} stats` shows how many calls there were in the last 7 days, and how "
    "they ended.\n"
    "• `{command} standing` lists what *Allow similar…* lets run, and how much of it "
    "is left.\n"
    "• `{command} delegate @colleague 4h` lets a colleague decide in your place for 4 "
    "hours; `{command} delegate off` ends this.\n"
    "• `{command} freeze tool NAME REASON` stops a tool at once: even its approved "
    "calls do not start. `{command} freeze agent NAME REASON` stops an agent, and "
    "`{command} freeze everything REASON` stops all agents and tools. "
    "`{command} unfreeze …` ends a freeze, and also the pause of an agent.\n"
    "• `{command} frozen` lists what is frozen or paused.\n"
    "• `{command} help` shows this text.\n"
    "In the menu ⋯ of a card, *I'm on it* tells others that you are looking at it, "
    "*Allow similar…* lets calls like it run for a while, *Ask the requester…* asks "
    "the person for whom the agent works, and *More time* extends the time to decide. "
    "Below a call that ran without review, *Freeze tool* stops its tool, and *Report* "
    "tells the channel that something is wrong.\n"
    "To ask an agent for something, mention me in a channel, or send me a direct "
    "message."
)


def register(router: Router) -> None:
    """Answer the slash command."""
    router.on_command(_command)


async def _command(ctx: ListenerContext, command: Command) -> AckBody:
    # An app can be installed in several workspaces; this bot has the token, and the
    # approvals, of one.
    if command.team != ctx.team:
        raise UserFacingError(
            template("I serve another workspace, so my commands do not work here.")
        )
    verb, rest = first_word(command.text)
    verb = verb.lower()
    if verb in _ASKED:
        return _answer(await _ASKED[verb](ctx, command, rest))
    if verb in _LISTED:
        return await _LISTED[verb](ctx, command, rest)
    if verb not in {"", "help"}:
        return _answer(joined("\n", [_UNKNOWN, _help(ctx)]))
    return _answer(_help(ctx))


def _answer(message: UserText) -> AckBody:
    """Return a sentence; a plain one may hold a name, so Slack must not read it."""
    shown = {"blocks": [section(message)]} if isinstance(message, Label) else {}
    return {"text": to_mrkdwn(message), **shown}


async def _list(ctx: ListenerContext, command: Command, _: str) -> AckBody:
    await ctx.require_member(command.who, OUTSIDER)
    found: dict[str, Loaded] = {}
    is_unknown = False
    away = ctx.away_parts()
    mine, looked_at = await waiting.concerning(ctx, command.user, away)
    here = await waiting.waiting(ctx, away)
    for loaded in {one.approval.id: one for one in (*mine, *here)}.values():
        access = await access_to(ctx, command, loaded.approval)
        is_unknown = is_unknown or (access.is_unknown and not access.is_given)
        if access.is_given:
            found[loaded.approval.id] = loaded
    listed = sorted(found.values(), key=lambda one: one.approval.expires_at_ms)
    shown = [await ctx.service.as_of_now(one) for one in listed[:_MAX_LISTED]]
    lines = [f"• {line(one.approval)}" for one in shown]
    is_cut = len(here) >= MAX_QUEUE
    left_out = ctx.incomplete(away)
    if not lines and not (is_cut or looked_at or left_out):
        lines.append(to_mrkdwn(_NOTHING))
    if len(listed) > _MAX_LISTED:
        lines.append(f"… and {len(listed) - _MAX_LISTED} more.")
    if looked_at:
        lines.append(to_mrkdwn(template(_CUT, count=looked_at)))
    elif is_cut:
        lines.append(to_mrkdwn(template(_CUT_HERE, count=len(here))))
    if is_unknown:
        lines.append(to_mrkdwn(_MAYBE_MORE))
    if left_out:
        lines.append(to_mrkdwn(left_out))
    return {"text": "\n".join(lines)}


T = TypeVar("T")
_Answers: TypeAlias = Mapping[
    str, Callable[[ListenerContext, Command, str], Awaitable[T]]
]

_ASKED: Final[_Answers[UserText]] = {
    "delegate": delegate,
    "freeze": freeze,
    "unfreeze": unfreeze,
}
"""Commands that are answered by a sentence."""

_LISTED: Final[_Answers[AckBody]] = {
    "frozen": list_freezes,
    "history": partial(past_command, is_mine=False),
    "list": _list,
    "mine": partial(past_command, is_mine=True),
    "show": show,
    "stats": stats_command,
    "standing": list_standing,
}
"""Commands that are answered by a list."""
