"""Show the metrics of the last days in answer to the slash command."""

from __future__ import annotations

import asyncio

from twokey.bot.blocks import context, section
from twokey.bot.cards.metrics import metrics_facts, metrics_table
from twokey.bot.cards.refs import when
from twokey.bot.listener_context import ListenerContext
from twokey.bot.listeners.router import AckBody
from twokey.bot.listeners.show import OUTSIDER
from twokey.bot.payload import Command
from twokey.bot.text_types import template
from twokey.gateway.metrics.fold import Selection

DAYS = 7
"""How many days the numbers are of; `twokey stats` takes any period."""

_WITHIN_S = 2.0
"""How long the audit log is read; Slack waits three seconds for the answer."""

_DAY_MS = 86_400_000
_NOTHING = template("No agent asked for a call in the last {n} days.", n=DAYS)
_TOO_LONG = template(
    "There is too much to count before Slack stops waiting. Ask the gateway's "
    "operator for the output of `twokey stats`."
)
_AWAY = template(
    "A part of the store does not answer, so the numbers cannot be counted. Please try "
    "again in a moment."
)


async def stats_command(ctx: ListenerContext, command: Command, _: str) -> AckBody:
    """Answer `/approvals stats` to a member: rates, waiting times, a table by tool.

    Raises:
        UserFacingError: says why not.
    """
    await ctx.require_member(command.who, OUTSIDER)
    since_ms = await ctx.now_ms() - DAYS * _DAY_MS
    away = ctx.away_parts()
    try:
        async with asyncio.timeout(_WITHIN_S):
            metrics = await ctx.service.statistics.metrics(
                Selection(since_ms=since_ms), away=away
            )
    except TimeoutError:
        return {"text": _TOO_LONG.text}
    if away.shards:
        # No part of the numbers: a rate without some of the agents would mislead.
        return {"text": _AWAY.text}
    if metrics.total.is_empty or not metrics.tools:
        return {"text": _NOTHING.text}
    title = template("*The last {n} days* · all agents", n=DAYS)
    blocks = [
        section(title),
        metrics_facts(metrics, block_id="stats.facts"),
        metrics_table(metrics, block_id="stats.tools"),
        context(template("Since {since}.", since=when(since_ms))),
    ]
    return {"text": f"The numbers of the last {DAYS} days.", "blocks": blocks}
