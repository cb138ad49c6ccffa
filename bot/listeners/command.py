"""Answer the slash command, to the person who typed it alone."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, LiteralString

from twokey.bot.blocks import section
from twokey.bot.cards.fallbacks import of_card
from twokey.bot.listener_context import ListenerContext, Said, UserFacingError, spoken
from twokey.bot.listeners.delegate import delegated
from twokey.bot.listeners.readable import access_to, member_reading
from twokey.bot.listeners.router import Reply, Router
from twokey.bot.listeners.stopping import frozen_now, lifted_now, listed_now
from twokey.bot.payload import Command
from twokey.bot.wording import Label, Template, joined, slash_command, template
from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol.tiers import Tier, join
from twokey.gateway.service.queue import MAX_QUEUE
from twokey.gateway.store.changing import Loaded

logger = logging.getLogger(__name__)

_MAX_LISTED = 20

_NOTHING = template(
    "Nothing waits that you may decide, asked for, or can read in this channel."
)
_NOT_FOUND = template(
    "There is no such approval that you may decide, asked for, or can read in this "
    "channel. Try it in the channel of its card."
)
_MAYBE_MORE = template(
    "There may be more: Slack did not say which user groups you are in. Please ask "
    "again in a moment."
)
_CUT: LiteralString = (
    "There may be more: only the {count} that end soonest were looked at."
)
_UNKNOWN = template("I do not know that command. These I know:")


def _help(ctx: ListenerContext) -> Template:
    return template(_WHAT_I_DO, command=slash_command(ctx.config.command))


_WHAT_I_DO: LiteralString = (
    "*What I do:* I show what an AI agent wants to do, and it happens only if one of "
    "you approves it.\n"
    "• `{command} list` says what waits that you may decide, asked for, or can read "
    "in this channel.\n"
    "• `{command} show ap_…` says where such an approval stands; its id is on the "
    "card.\n"
    "• `{command} delegate @colleague 4h` lets somebody decide in your place for a "
    "while; `{command} delegate off` ends that.\n"
    "• `{command} freeze tool NAME why` stops a tool at once, also what was approved "
    "before; `freeze agent NAME why` and `freeze everything why` stop more. "
    "`{command} unfreeze …` lifts it, and also lets a paused agent go on.\n"
    "• `{command} frozen` says what is frozen or paused.\n"
    "• `{command} help` says this.\n"
    "On a card, *I'm on it* tells the others that you look at it, *More time* puts its "
    "end off, and a reminder comes before that. Under what ran without "
    "review, *Freeze tool* stops the tool and *Report* says that something is wrong.\n"
    "To ask an agent for something, mention me in a channel, or write to me directly."
)

_ASKED: Final[
    Mapping[str, Callable[[ListenerContext, Command, str], Awaitable[Said]]]
] = {
    "delegate": delegated,
    "freeze": frozen_now,
    "unfreeze": lifted_now,
}


def register(router: Router) -> None:
    """Answer the slash command."""
    router.on_command(_command)


async def _command(ctx: ListenerContext, command: Command) -> Reply:
    if command.team != ctx.team:
        raise UserFacingError(
            template("I serve another workspace, so I cannot answer here.")
        )
    verb, _, rest = command.text.strip().partition(" ")
    verb, rest = verb.lower(), rest.strip()
    if verb in _ASKED:
        return _answer(await _ASKED[verb](ctx, command, rest))
    if verb == "frozen":
        return await listed_now(ctx, command)
    if verb == "show" and rest:
        return {"text": await _shown(ctx, command, rest.strip("`"))}
    if verb == "list":
        return {"text": await _listed(ctx, command)}
    if verb not in {"", "help"}:
        return _answer(joined("\n", [_UNKNOWN, _help(ctx)]))
    return _answer(_help(ctx))


def _answer(said: Said) -> Reply:
    """Return a sentence; a plain one may hold a name, so Slack must not read it."""
    shown = {"blocks": [section(said)]} if isinstance(said, Label) else {}
    return {"text": spoken(said), **shown}


def _line(approval: Approval) -> str:
    """Return where an approval stands, with the id that ``show`` takes."""
    tier = join(Tier.AUTO, *(item.tier for item in approval.items))
    return f"{of_card(approval)} Tier {tier}, `{approval.id}`."


async def _shown(ctx: ListenerContext, command: Command, approval_id: str) -> str:
    await member_reading(ctx, command)
    loaded = await ctx.service.read(approval_id)
    if loaded is None:
        return spoken(_NOT_FOUND)
    access = await access_to(ctx, command, loaded.approval)
    if access.is_given:
        return _line((await ctx.service.as_of_now(loaded)).approval)
    return spoken(_MAYBE_MORE if access.is_open else _NOT_FOUND)


async def _listed(ctx: ListenerContext, command: Command) -> str:
    await member_reading(ctx, command)
    found: list[Loaded] = []
    is_open = False
    target = 0
    async for loaded in ctx.service.queue.waiting():
        target += 1
        access = await access_to(ctx, command, loaded.approval)
        is_open = is_open or (access.is_open and not access.is_given)
        if access.is_given:
            found.append(loaded)
    shown = [await ctx.service.as_of_now(one) for one in found[:_MAX_LISTED]]
    lines = [f"• {_line(by_now.approval)}" for by_now in shown]
    is_cut = target >= MAX_QUEUE
    if not lines and not is_cut:
        lines.append(spoken(_NOTHING))
    if len(found) > _MAX_LISTED:
        lines.append(f"… and {len(found) - _MAX_LISTED} more.")
    if is_cut:
        lines.append(spoken(template(_CUT, count=target)))
    if is_open:
        lines.append(spoken(_MAYBE_MORE))
    return "\n".join(lines)
