"""Freeze an agent, a tool or everything (kill switch), lift it, list freezes.

``freeze tool process_refund wrong amounts since noon``
"""

from __future__ import annotations

import html
import logging
from collections.abc import Awaitable, Callable
from typing import LiteralString

from twokey.bot.blocks import context, first_rows, section
from twokey.bot.cards.freeze_messages import actor_ref
from twokey.bot.cards.refs import when
from twokey.bot.listener_context import (
    ListenerContext,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from twokey.bot.listeners.router import AckBody
from twokey.bot.objects import Block
from twokey.bot.payload import Command
from twokey.bot.text import first_word, fit
from twokey.bot.text_types import label, slash_command, template, untrusted
from twokey.gateway.approvals.decisions import Forbidden, Gesture, Reviewer
from twokey.gateway.errors import FreezeIncomplete
from twokey.gateway.service.reviewer_freezes import MAX_REASON
from twokey.gateway.service.split_freezes import FreezesSeen, IncompleteFreeze
from twokey.gateway.store.freezes import Freeze, FreezeScope, ScopeKind

logger = logging.getLogger(__name__)

EVERYTHING = "everything"
"""What people write for the tenant, which they know nothing of."""

_LONGEST_NAME = 200
_LISTED = 15

_USAGE: LiteralString = (
    "Write `{command} freeze tool NAME REASON`, `{command} freeze agent NAME REASON` "
    "or `{command} freeze everything REASON`. To end a freeze, write `unfreeze` in "
    "place of `freeze`."
)
_OUTSIDER = template("Only members of this workspace can see what is frozen.")

Change = Callable[[FreezeScope, Reviewer, str], Awaitable[bool | Forbidden]]


async def freeze(ctx: ListenerContext, command: Command, rest: str) -> UserText:
    """Stop what was named, and say so.

    Raises:
        UserFacingError: says why not.
    """
    scope, reason = _read(rest, ctx.config.command)
    is_new = await _changed(
        ctx, command, scope, reason, ctx.service.reviewer_freezes.freeze
    )
    if not is_new:
        return label(f"{_named(scope)} is frozen already; nothing changed.")
    check = ctx.service.reviewer_freezes.unknown_name(scope, ctx.config.agents)
    said = (
        f"{_named(scope)} is frozen: even approved calls do not start.",
        *([check] if check else []),
        f"{ctx.config.command} unfreeze {_words(scope)} ends the freeze.",
    )
    return label(" ".join(said))


async def unfreeze(ctx: ListenerContext, command: Command, rest: str) -> UserText:
    """Let run again what was named, and say so; raises `UserFacingError`."""
    scope, reason = _read(rest, ctx.config.command)
    was = await _changed(
        ctx, command, scope, reason, ctx.service.reviewer_freezes.unfreeze
    )
    if not was:
        return label(f"{_named(scope)} was not frozen; nothing changed.")
    return label(f"{_named(scope)} may run again.")


async def list_freezes(ctx: ListenerContext, command: Command, _: str) -> AckBody:
    """Return what is frozen or paused, by whom and why, for a member.

    Raises:
        UserFacingError: says why not.
    """
    await ctx.require_member(command.who, _OUTSIDER)
    seen = await ctx.service.freezes.look()
    if not (seen.freezes or seen.incomplete or seen.away):
        return {
            "text": to_mrkdwn(template("Nothing is frozen, and no agent is paused."))
        }
    blocks = first_rows([*map(_row, seen.freezes)], _LISTED)
    blocks += [section(untrusted(_partly(one, seen))) for one in seen.incomplete]
    if seen.away:
        blocks.append(section(label(_unseen(seen))))
    return {"text": f"Frozen or paused: {len(seen.freezes)}.", "blocks": blocks}


def _partly(freeze: IncompleteFreeze, seen: FreezesSeen) -> str:
    lacking = f"{', '.join(freeze.lacking)} of {seen.parts} shards lack this"
    if freeze.is_set:
        what = f"{freeze.name}: {lacking} freeze, so calls there may still start."
    else:
        what = f"{freeze.name}: unfrozen, and {lacking}, so calls there do not start."
    return f"⚠️ {fit(what, MAX_REASON)} A gateway that runs completes it in seconds."


def _unseen(seen: FreezesSeen) -> str:
    return (
        f"⚠️ Incomplete: {', '.join(seen.away)} of {seen.parts} shards do not answer. "
        "Something may be frozen or paused there that is not listed, and what is "
        "listed may be missing there."
    )


def _row(freeze: Freeze) -> list[Block]:
    word = "paused" if freeze.is_pause else "frozen"
    why = f": {freeze.reason}" if freeze.reason else "."
    line = f"{_named(freeze.scope)} is {word}{why}"
    since = template("By {who}, {at}", who=actor_ref(freeze.by), at=when(freeze.at_ms))
    return [section(untrusted(fit(line, MAX_REASON))), context(since)]


async def _changed(
    ctx: ListenerContext,
    command: Command,
    scope: FreezeScope,
    reason: str,
    change: Change,
) -> bool:
    reviewer = await ctx.resolve_freezer(*command.who, scope)
    reviewer = reviewer.with_(gesture=Gesture.SLASH_COMMAND)
    await ctx.ensure_first(command.digest)
    try:
        result = await change(scope, reviewer, reason)
    except FreezeIncomplete as error:
        raise UserFacingError(label(str(error))) from None
    if isinstance(result, Forbidden):
        logger.info("freeze.refused user=%s kind=%s", command.user, scope.kind)
        raise UserFacingError(label(result.reason))
    return result


def _read(rest: str, command: str) -> tuple[FreezeScope, str]:
    kind, more = first_word(rest)
    if kind.lower() in {EVERYTHING, ScopeKind.TENANT.value}:
        return FreezeScope(kind=ScopeKind.TENANT), _reason(more)
    name, why = first_word(more)
    # Slack escapes & < > in what people type, and the store knows the tool by its real
    # name.
    name = html.unescape(name.strip("`"))
    if kind.lower() not in {ScopeKind.AGENT.value, ScopeKind.TOOL.value} or not name:
        raise UserFacingError(template(_USAGE, command=slash_command(command)))
    if len(name) > _LONGEST_NAME:
        raise UserFacingError(
            template(
                "This name is too long: names have at most {most} characters. Nothing "
                "was changed.",
                most=_LONGEST_NAME,
            )
        )
    return FreezeScope(kind=ScopeKind(kind.lower()), name=name), _reason(why)


def _reason(text: str) -> str:
    # Slack escapes & < > in what people type.
    reason = html.unescape(text.strip())
    if len(reason) > MAX_REASON:
        raise UserFacingError(
            template(
                "This reason is too long: please use at most {most} characters. "
                "Nothing was changed.",
                most=MAX_REASON,
            )
        )
    return reason


def _named(scope: FreezeScope) -> str:
    return f"The {scope.kind} {_shown(scope)}" if scope.name else "Everything"


def _words(scope: FreezeScope) -> str:
    return f"{scope.kind} {_shown(scope)}" if scope.name else EVERYTHING


def _shown(scope: FreezeScope) -> str:
    return fit(scope.name, _LONGEST_NAME)
