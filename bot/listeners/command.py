"""Answer the slash command with an ephemeral message.

It freezes an agent, a tool or everything (the kill switch), delegates a person's
decisions to a colleague, and lists the approvals that the person may read.
"""

from __future__ import annotations

import asyncio
import html
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, LiteralString

from keyturn.bot.blocks import Block, context, first_rows, section
from keyturn.bot.cards.metrics_messages import facts_block, table_block, tool_rows
from keyturn.bot.cards.refs import actor, when
from keyturn.bot.listener_context import (
    ListenerContext,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from keyturn.bot.listeners.reading import list_waiting, past_command, show
from keyturn.bot.listeners.router import AckBody
from keyturn.bot.listeners.standing import list_standing
from keyturn.bot.payload import Command
from keyturn.bot.text import (
    Label,
    Template,
    first_word,
    fit,
    joined,
    label,
    slash_command,
    template,
    untrusted,
    user,
)
from keyturn.gateway.approvals.decisions import Forbidden, Gesture, Reviewer
from keyturn.gateway.metrics.report import Selection, facts
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.service.people.freezing import MAX_REASON, misspelled, unknown_name
from keyturn.gateway.setting_forms import parse_duration
from keyturn.gateway.store.limits.freezes import Freeze, FreezeScope, ScopeKind

logger = logging.getLogger(__name__)

_UNKNOWN = template("I do not know this command.")
_WHAT_I_DO: LiteralString = (
    "*What I do:* I show you what an AI agent wants to run. It runs only if people "
    "approve it.\n"
    "• `{command} list` lists the waiting approvals: yours to decide, your own "
    "requests, and those of this channel.\n"
    "• `{command} show ID` shows the state of one approval; the id, such as "
    "`145163ba`, is in lists, and on its card or under *Full details* there.\n"
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
    "`{command} freeze everything REASON` stops all agents and tools. `{command} "
    "unfreeze …` ends a freeze, and also the pause of an agent.\n"
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


async def answer(ctx: ListenerContext, command: Command) -> AckBody:
    """Answer the slash command; raises `UserFacingError`."""
    # An app can be installed in several workspaces; this bot has the token and the
    # approvals of one.
    if command.team != ctx.team:
        raise UserFacingError(
            "I serve another workspace, so my commands do not work here."
        )
    verb, rest = first_word(command.text)
    verb = verb.lower()
    if verb in _COMMANDS:
        await ctx.require_member(command.who)
        said = await _COMMANDS[verb](ctx, command, rest)
        return said if isinstance(said, Mapping) else _answer(said)
    if verb not in {"", "help"}:
        return _answer(joined("\n", [_UNKNOWN, _help(ctx)]))
    return _answer(_help(ctx))


def _answer(message: UserText) -> AckBody:
    """Return a sentence; plain text may contain a name, so Slack must not parse it."""
    shown = {"blocks": [section(message)]} if isinstance(message, Label) else {}
    return {"text": to_mrkdwn(message), **shown}


def _help(ctx: ListenerContext) -> Template:
    return template(_WHAT_I_DO, command=slash_command(ctx.config.command))


DAYS = 7
"""Days that the numbers cover; `keyturn stats` takes any period."""

_WITHIN_S = 2.0
"""Time limit for reading the audit log; Slack waits three seconds for the answer."""

_DAY_MS = 86_400_000
_NO_CALLS = template("No agent asked for a call in the last {n} days.", n=DAYS)
_TOO_LONG = template(
    "There is too much to count before Slack stops waiting. Ask the gateway's "
    "operator for the output of `keyturn stats`."
)


async def stats_command(ctx: ListenerContext, *_: object) -> AckBody:
    """Answer `/approvals stats` to a member: rates, waiting times, a table by tool.

    Raises:
        UserFacingError: explains a refusal.
    """
    since_ms = await ctx.now_ms() - DAYS * _DAY_MS
    try:
        async with asyncio.timeout(_WITHIN_S):
            metrics = await ctx.service.statistics.metrics(Selection(since_ms=since_ms))
    except TimeoutError:
        return {"text": _TOO_LONG.text}
    if metrics.total.is_empty or not metrics.tools:
        return {"text": _NO_CALLS.text}
    title = template("*The last {n} days* · all agents", n=DAYS)
    blocks = [
        section(title),
        facts_block(facts(metrics)),
        table_block(tool_rows(metrics)),
        context(template("Since {since}.", since=when(since_ms))),
    ]
    return {"text": f"The numbers of the last {DAYS} days.", "blocks": blocks}


# The form of a mention; `require_member` verifies the member with Slack.
_ARGUMENTS = re.compile(r"<@(?P<to>[UW][A-Z0-9]{1,30})(?:\|[^>]*)?>\s+(?P<time>\S+)")

_DELEGATE_USAGE: LiteralString = (
    "Write `{command} delegate @colleague 4h` to let a colleague decide in your place "
    "for 4 hours, or `{command} delegate off` to end this."
)


async def delegate(ctx: ListenerContext, command: Command, rest: str) -> UserText:
    """Start or end a delegation, and confirm it.

    Raises:
        UserFacingError: explains a refusal.
    """
    asker = await ctx.require_member(command.who)
    owner = Person(team=ctx.team, user=command.user, name=asker.name)
    if rest.lower() == "off":
        return await _ended(ctx, owner)
    found = _ARGUMENTS.fullmatch(rest)
    if found is None:
        raise UserFacingError(
            template(_DELEGATE_USAGE, command=slash_command(ctx.config.command))
        )
    return await _started(ctx, owner, found["to"], found["time"])


async def _ended(ctx: ListenerContext, owner: Person) -> UserText:
    if await ctx.service.delegations.take_back(owner, gesture=Gesture.SLASH_COMMAND):
        return template("Nobody decides in your place any more.")
    return template("Nobody was deciding in your place; nothing changed.")


async def _started(ctx: ListenerContext, owner: Person, to: str, time: str) -> UserText:
    refusal: LiteralString = "Only members of this workspace can decide in your place."
    # Fresh: the colleague decides for another person for hours, so an account that was
    # deactivated a minute ago must not get that right.
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


EVERYTHING = "everything"
"""The word for the tenant in commands; people do not know tenants."""

_LONGEST_NAME = 200
_MOST_FREEZES = 15

_USAGE: LiteralString = (
    "Write `{command} freeze tool NAME REASON`, `{command} freeze agent NAME REASON` "
    "or `{command} freeze everything REASON`. To end a freeze, write `unfreeze` in "
    "place of `freeze`."
)

Change = Callable[[FreezeScope, Reviewer, str], Awaitable[bool | Forbidden]]


async def freeze(ctx: ListenerContext, command: Command, rest: str) -> UserText:
    """Freeze the named scope, and confirm it.

    Raises:
        UserFacingError: explains a refusal.
    """
    scope, reason = _read(rest, ctx.config.command)
    is_new = await _changed(ctx, command, scope, reason, ctx.service.freezes.freeze_by)
    if not is_new:
        return label(f"{_named(scope)} is frozen already; nothing changed.")
    check = unknown_name(ctx.service.policy_now, ctx.config.agents, scope)
    words = f"{scope.kind} {scope.name}" if scope.name else EVERYTHING
    said = (
        f"{_named(scope)} is frozen. Nothing starts, not even approved calls, until "
        f"{ctx.config.command} unfreeze {words}."
    )
    return label(f"{said} {check}".strip())


async def unfreeze(ctx: ListenerContext, command: Command, rest: str) -> UserText:
    """Lift the freeze of the named scope, and confirm it; raises `UserFacingError`."""
    scope, reason = _read(rest, ctx.config.command)
    was = await _changed(ctx, command, scope, reason, ctx.service.freezes.unfreeze_by)
    if not was:
        _ensure_spelled(ctx, scope)
        return label(f"{_named(scope)} was not frozen; nothing changed.")
    return label(f"{_named(scope)} may run again.")


def _ensure_spelled(ctx: ListenerContext, scope: FreezeScope) -> None:
    if said := misspelled(ctx.service.policy_now, ctx.config.agents, scope):
        raise UserFacingError(label(said))


async def list_freezes(ctx: ListenerContext, *_: object) -> AckBody:
    """Return the frozen and paused scopes, with actors and reasons, for a member.

    Raises:
        UserFacingError: explains a refusal.
    """
    freezes = await ctx.service.freezes.frozen()
    if not freezes:
        return {
            "text": to_mrkdwn(template("Nothing is frozen, and no agent is paused."))
        }
    blocks = first_rows([*map(_row, freezes)], _MOST_FREEZES)
    return {"text": f"Frozen or paused: {len(freezes)}.", "blocks": blocks}


def _row(freeze: Freeze) -> list[Block]:
    word = "paused" if freeze.is_pause else "frozen"
    why = f": {freeze.reason}" if freeze.reason else "."
    line = f"{_named(freeze.scope)} is {word}{why}"
    since = template("By {who}, {at}", who=actor(freeze.by), at=when(freeze.at_ms))
    return [section(untrusted(fit(line, MAX_REASON))), context(since)]


async def _changed(
    ctx: ListenerContext,
    command: Command,
    scope: FreezeScope,
    reason: str,
    change: Change,
) -> bool:
    freezes = ctx.service.freezes
    groups = freezes.usergroups(scope)
    reviewer = await ctx.resolve(*command.who, groups=groups, fresh=True)
    reviewer = reviewer.with_(gesture=Gesture.SLASH_COMMAND)
    # After the permission check: otherwise anyone could probe the names of tools.
    if change == freezes.freeze_by and freezes.forbidden(scope, reviewer) is None:
        _ensure_spelled(ctx, scope)
    result = await change(scope, reviewer, reason)
    if isinstance(result, Forbidden):
        logger.info("freeze.refused user=%s kind=%s", command.user, scope.kind)
        raise UserFacingError(label(result.reason))
    return result


def _read(rest: str, command: str) -> tuple[FreezeScope, str]:
    kind, more = first_word(rest)
    if kind.lower() in {EVERYTHING, ScopeKind.TENANT.value}:
        return FreezeScope(kind=ScopeKind.TENANT), _reason_in(more)
    name, why = first_word(more)
    # Slack escapes & < > in typed text, and the store has the tool's real name.
    name = html.unescape(name.strip("`"))
    if kind.lower() not in {ScopeKind.AGENT.value, ScopeKind.TOOL.value} or not name:
        raise UserFacingError(template(_USAGE, command=slash_command(command)))
    _ensure_short(name, _LONGEST_NAME)
    return FreezeScope(kind=ScopeKind(kind.lower()), name=name), _reason_in(why)


def _reason_in(text: str) -> str:
    # Slack escapes & < > in typed text.
    reason = html.unescape(text.strip())
    _ensure_short(reason, MAX_REASON)
    return reason


def _ensure_short(text: str, most: int) -> None:
    if len(text) > most:
        said: LiteralString = (
            "Nothing was changed: names have at most {name} characters, and reasons "
            "{reason}."
        )
        limits = {"name": _LONGEST_NAME, "reason": MAX_REASON}
        raise UserFacingError(template(said, **limits))


def _named(scope: FreezeScope) -> str:
    return f"The {scope.kind} {scope.name}" if scope.name else "Everything"


_OnCommand = Callable[[ListenerContext, Command, str], Awaitable[UserText | AckBody]]

_COMMANDS: Final[Mapping[str, _OnCommand]] = {
    "delegate": delegate,
    "freeze": freeze,
    "frozen": list_freezes,
    "history": partial(past_command, is_mine=False),
    "list": list_waiting,
    "mine": partial(past_command, is_mine=True),
    "show": show,
    "stats": stats_command,
    "standing": list_standing,
    "unfreeze": unfreeze,
}
"""Commands, each with a function that returns a sentence or a list."""
