"""Show on a card how earlier calls with the same effect ended.

A banner says which waiting calls were done before. Small print names who decided, and
says what was rejected and what the windows of a call hold. No argument is repeated,
and a reviewer's words are shown only to those who review the same agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import LiteralString

from twokey.bot.blocks import context, section
from twokey.bot.cards.frame import Frame
from twokey.bot.cards.refs import join_list, when
from twokey.bot.cards.table import calls_named
from twokey.bot.objects import Block
from twokey.bot.text import fit
from twokey.bot.text_types import (
    Plain,
    Template,
    code,
    joined,
    label,
    template,
    untrusted,
)
from twokey.gateway.approvals.precedents import (
    Precedent,
    PrecedentKind,
    WindowTotal,
)
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.repeating import args_hash, other_calls
from twokey.gateway.policy.windows import MICRO
from twokey.gateway.protocol.states import ItemState

MOST_TEXT = 900
"""Characters that all of it takes on a card, at most."""

_CALLS = 3
"""Calls of a batch that the banner names."""
_NAMES = 60
_NAMED = 200
_REASON = 120
_TOTALS = 2
_HOUR_MS = 3_600_000
_TOTAL = 90

_DONE: dict[ItemState, LiteralString] = {
    ItemState.AUTHORIZED: "was approved {at} and may run at any moment",
    ItemState.EXECUTING: "was approved {at} and is running",
    ItemState.EXECUTED: "ran {at}",
    ItemState.IN_DOUBT: "may have run {at}",
}
_BY_POLICY: LiteralString = "was let run by the policy {at}"


def precedents(frame: Frame) -> list[Block]:
    """Return the banner, and the small print under it; nothing without precedents."""
    approval = frame.approval
    waiting = [item for item in approval.items if item.is_pending]
    done = [
        (item, found[0])
        for item in waiting
        if (found := other_calls(approval, item.past))
    ]
    blocks: list[Block] = []
    if done:
        lines = [_line(approval, item, one) for item, one in done[:_CALLS]]
        more = len(done) - len(lines)
        if more:
            lines.append(template("⚠️ {n} more of them were done before", n=more))
        blocks.append(section(joined("\n", lines), block_id=frame.block_id("past")))
    blocks += _same_calls(frame, waiting)
    # A batch has room for its banner only; Full details of a call say more.
    is_alone = waiting and not approval.is_batch
    small = _small_print(approval, waiting[0]) if is_alone else []
    if small:
        blocks.append(context(*small, block_id=frame.block_id("past.more")))
    return blocks


def _same_calls(frame: Frame, waiting: Sequence[Item]) -> list[Block]:
    """Say which calls of a card are the same: that may be a mistake of the agent."""
    by_effect: dict[str, list[Item]] = {}
    for item in waiting:
        if item.effect:
            by_effect.setdefault(item.effect, []).append(item)
    groups = [items for items in by_effect.values() if len(items) > 1]
    if not groups:
        return []
    named = "; ".join(calls_named(one.index for one in items) for items in groups)
    said = template("⚠️ *The same more than once:*")
    shown = untrusted(fit(named, _NAMED))
    return [context(said, shown, block_id=frame.block_id("past.same"))]


def happened(precedent: Precedent) -> Template:
    """Return how an earlier call ended, to go on behind "the same call"."""
    is_of_policy = not precedent.by and precedent.state is ItemState.AUTHORIZED
    sentence = _BY_POLICY if is_of_policy else _DONE[precedent.state]
    return template(sentence, at=when(precedent.at_ms))


def _line(approval: Approval, item: Item, precedent: Precedent) -> Template:
    is_same = precedent.args_hash == args_hash(item.tool, item.args)
    return joined(
        " ",
        [
            template("⚠️"),
            *([template("*Call {n}:*", n=item.index + 1)] * approval.is_batch),
            template("*The same call*") if is_same else _like_it(item.past.same_by),
            happened(precedent),
            *([] if is_same else [template("with other arguments")]),
        ],
    )


def _like_it(same_by: tuple[str, ...]) -> Template:
    names = [name.removeprefix("args.") for name in same_by]
    try:
        shown = [template("{name}", name=code(name)) for name in names]
    except ValueError:  # a name that could be read as markup
        shown = []
    if not shown or sum(map(len, names)) > _NAMES:
        return template("*A call with the same effect*")
    return joined(" ", [template("*A call with the same*"), join_list(shown)])


def _small_print(approval: Approval, item: Item) -> list[Template | Plain]:
    done = other_calls(approval, item.past)
    rejected = item.past.of_kind(PrecedentKind.REJECTED)
    parts: list[Template | Plain] = []
    if done:
        parts += _people(approval, done[0], "Approved")
    if len(done) > 1:
        parts.append(label(f"{len(done)} times in all"))
    if rejected:
        parts.append(template("🚫 *Rejected* {at}", at=when(rejected[0].at_ms)))
        parts += _people(approval, rejected[0], "")
    totals = [one for one in item.past.totals if one.others_micro]
    return [*parts, *(_total(one) for one in totals[:_TOTALS])]


def _people(approval: Approval, precedent: Precedent, verb: str) -> list[Plain]:
    """Name people in plain text: a mention would notify them of a call of others."""
    names = fit(", ".join(one.name or one.user for one in precedent.by), _NAMES)
    said = f"{verb} by {names}" if names else ""
    if precedent.agent != approval.agent:
        said += f" for the agent {fit(precedent.agent, _NAMES)}"
    # Another agent may have other reviewers, whose words are not for these.
    elif precedent.reason:
        said += f": {fit(precedent.reason, _REASON)}"
    return [untrusted(said.strip())] if said else []


def _total(total: WindowTotal) -> Plain:
    amount = Decimal(total.others_micro) / MICRO
    shown = f"{amount:,.2f}".removesuffix(".00")
    what = "other calls" if total.is_count else "in other calls"
    by = f" with the same {total.by.removeprefix('args.')}" if total.by else ""
    span = f"{total.within_ms / 60_000:g} min"
    if total.within_ms >= _HOUR_MS:
        span = f"{total.within_ms / _HOUR_MS:g} h"
    return label(fit(f"{total.window}: {shown} {what}{by} in {span}", _TOTAL))
