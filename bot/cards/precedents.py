"""Show on a card how earlier calls with the same effect ended.

A banner says which waiting calls were done before. Small print names who decided, and
says what was rejected and what the windows of a call hold. No argument is repeated,
and a reviewer's words are shown only to those who review the same agent.
"""

from __future__ import annotations

from collections.abc import Container
from decimal import Decimal
from typing import LiteralString

from keyturn.bot.blocks import Block, context, section
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.refs import join_list, when
from keyturn.bot.cards.table import calls_named
from keyturn.bot.text import (
    Plain,
    Template,
    code,
    fit,
    joined,
    label,
    template,
    untrusted,
)
from keyturn.gateway.approvals.precedents import (
    Precedent,
    PrecedentKind,
    WindowTotal,
)
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.repeating import args_hash, doubled, other_calls
from keyturn.gateway.policy.windows import MICRO
from keyturn.gateway.protocol.states import ItemState

MOST_TEXT = 900
"""Characters that all of it takes on a card, at most."""

_CALLS = 3
"""Calls of a batch that the banner names."""
_NAMES = 60
_PAIR = 2
_SAME = 140
_REASON = 120
_TOTALS = 2
_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
_TOTAL = 90

_DONE: dict[ItemState, LiteralString] = {
    ItemState.PENDING: "waits on another card since {at}",
    ItemState.AUTHORIZED: "was approved {at} and may run at any moment",
    ItemState.EXECUTING: "was approved {at} and is running",
    ItemState.EXECUTED: "ran {at}",
    ItemState.IN_DOUBT: "may have run {at}",
    ItemState.REJECTED: "was rejected before, {at}",
}
_BY_POLICY: LiteralString = "was let run by the policy {at}"


def precedents(frame: Frame) -> list[Block]:
    """Return the banner, and the small print under it; nothing without precedents."""
    approval = frame.approval
    waiting = [item for item in approval.items if item.is_pending]
    done = [
        (item, found[0])
        for item in waiting
        for found in (
            other_calls(approval, item.past) or _elsewhere(approval, item),
            _rejected(item),
        )
        if found and not (approval.is_batch and found[0].state is ItemState.PENDING)
    ]
    blocks: list[Block] = []
    if done:
        lines = [_line(approval, item, one) for item, one in done[:_CALLS]]
        more = len(done) - len(lines)
        if more:
            lines.append(template("⚠️ {n} more were done or asked before", n=more))
        blocks.append(section(joined("\n", lines)))
    same = same_calls(approval)
    others = [item.index for item in waiting if _elsewhere(approval, item)]
    if others and approval.is_batch:
        named = fit(calls_named(others).capitalize(), _SAME)
        same.append(f"{named}: the same is waiting on another card.")
    if same:
        text = label("\n".join(f"⚠️ {line}" for line in same))
        blocks.append(section(text))
    # A batch has room for its banner only; Full details of a call say more.
    is_alone = waiting and not approval.is_batch
    small = _small_print(approval, waiting[0]) if is_alone else []
    if small:
        blocks.append(context(*small))
    return blocks


def same_calls(approval: Approval, among: Container[int] | None = None) -> list[str]:
    """Name the waiting calls of a card that are the same, which may be a mistake.

    Args:
        approval: the calls of the card.
        among: the calls to look at, by index; None for all.
    """
    lines: list[str] = []
    for group in doubled(approval):
        items = [one for one in group if among is None or one.index in among]
        if len(items) < _PAIR:
            continue
        *first, last = (f"{one.index + 1}" for one in items)
        alike = {args_hash(one.tool, one.args) for one in items}
        names = ", ".join(one.removeprefix("args.") for one in items[0].past.same_by)
        what = f"have the same {names}" if names else "have the same effect"
        said = "are the same call" if len(alike) == 1 else what
        named = fit(", ".join(first), _NAMES)
        lines.append(fit(f"Calls {named} and {last} {said}.", _SAME))
    more = len(lines) - _CALLS
    rest = [f"{more} more groups of calls are the same."] if more > 0 else []
    return [*lines[:_CALLS], *rest]


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
    rejected = _rejected(item)
    parts: list[Template | Plain] = []
    if done:
        parts += _people(approval, done[0], "Approved")
    if len(done) > 1:
        parts.append(label(f"{len(done)} times in all"))
    if rejected:
        parts += _people(approval, rejected[0], "Rejected before")
    totals = [one for one in item.past.totals if one.others_micro]
    return [*parts, *(_total(one) for one in totals[:_TOTALS])]


def _elsewhere(approval: Approval, item: Item) -> tuple[Precedent, ...]:
    return other_calls(approval, item.past, PrecedentKind.WAITING)


def _rejected(item: Item) -> tuple[Precedent, ...]:
    return item.past.of_kind(PrecedentKind.REJECTED)


def _people(approval: Approval, precedent: Precedent, verb: str) -> list[Plain]:
    """Name people in plain text: a mention would notify them of a call of others."""
    names = fit(", ".join(one.name or one.user for one in precedent.by), _NAMES)
    said = f"{verb} by {names}" if names else verb
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
    by = f"Same {total.by.removeprefix('args.')}, last" if total.by else "Last"
    span = f"{total.within_ms / 60_000:g} min"
    if total.within_ms < _MINUTE_MS:
        span = f"{total.within_ms / 1000:g} s"
    if total.within_ms >= _HOUR_MS:
        span = f"{total.within_ms / _HOUR_MS:g} h"
    return label(fit(f"{by} {span}: {shown} {what} ({total.window})", _TOTAL))
