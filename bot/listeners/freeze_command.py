"""Freeze an agent, a tool or everything (kill switch), lift it, list freezes.

``freeze tool process_refund wrong amounts since noon``
"""

from __future__ import annotations

import html
import logging
from collections.abc import Awaitable, Callable
from typing import LiteralString

from keyturn.bot.blocks import Block, context, first_rows, section
from keyturn.bot.cards.refs import when
from keyturn.bot.cards.security_messages import actor_ref
from keyturn.bot.ids import Action
from keyturn.bot.listener_context import (
    ListenerContext,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import verify_click
from keyturn.bot.payload import Clicked, Command
from keyturn.bot.text import first_word, fit
from keyturn.bot.text_types import label, slash_command, template, untrusted
from keyturn.gateway.approvals.decisions import Forbidden, Gesture, Reviewer
from keyturn.gateway.service.freezing import MAX_REASON
from keyturn.gateway.store.freezes import Freeze, FreezeScope, ScopeKind

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
        f"{_named(scope)} is frozen. Nothing starts, not even approved calls, until "
        f"{ctx.config.command} unfreeze {_words(scope)}."
    )
    return label(f"{said} {check}".strip())


async def unfreeze(ctx: ListenerContext, command: Command, rest: str) -> UserText:
    """Let run again what was named, and say so; raises `UserFacingError`."""
    scope, reason = _read(rest, ctx.config.command)
    was = await _changed(
        ctx, command, scope, reason, ctx.service.reviewer_freezes.unfreeze
    )
    if not was:
        _ensure_spelled(ctx, scope)
        return label(f"{_named(scope)} was not frozen; nothing changed.")
    return label(f"{_named(scope)} may run again.")


def _ensure_spelled(ctx: ListenerContext, scope: FreezeScope) -> None:
    if said := ctx.service.reviewer_freezes.misspelled(scope, ctx.config.agents):
        raise UserFacingError(label(said))


async def list_freezes(ctx: ListenerContext, command: Command, _: str) -> AckBody:
    """Return what is frozen or paused, by whom and why, for a member.

    Raises:
        UserFacingError: says why not.
    """
    await ctx.require_member(command.who, _OUTSIDER)
    freezes = await ctx.service.freezes.frozen()
    if not freezes:
        return {
            "text": to_mrkdwn(template("Nothing is frozen, and no agent is paused."))
        }
    blocks = first_rows([*map(_row, freezes)], _LISTED)
    return {"text": f"Frozen or paused: {len(freezes)}.", "blocks": blocks}


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
    freezes = ctx.service.reviewer_freezes
    # After the permission: else anybody could learn the names of tools.
    if change == freezes.freeze and freezes.forbidden(scope, reviewer) is None:
        _ensure_spelled(ctx, scope)
    await ctx.ensure_first(command.digest)
    result = await change(scope, reviewer, reason)
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


def register(router: Router) -> None:
    """Answer the button Freeze tool."""
    router.on_action(Action.FREEZE_TOOL, _freeze)


async def _freeze(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.FREEZE_TOOL)
    scope = FreezeScope(kind=ScopeKind.TOOL, name=target.item.tool)
    reviewer = await ctx.resolve_freezer(*clicked.who, scope)
    approval_id = target.approval.id
    await ctx.ensure_first(clicked.digest, clicked.token)
    reason = f"frozen from notification {approval_id}"
    result = await ctx.service.reviewer_freezes.freeze(
        scope, reviewer.with_(gesture=clicked.gesture), reason
    )
    if isinstance(result, Forbidden):
        logger.info("freeze.refused user=%s approval=%s", reviewer.user, approval_id)
        raise UserFacingError(label(result.reason))
    # The tool's name is the agent's text, and Slack reads this as markup.
    if not result:
        return template("This tool is frozen already; nothing changed.")
    return template(
        "The tool is frozen: nothing starts, not even approved calls. A message in "
        "the channel names the command that ends the freeze."
    )
