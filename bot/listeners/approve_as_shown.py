"""Approve from a card that this process drew, without reading anything first.

What a click is otherwise compared with, one reading after the other, is compared in the
step that writes the decision: that the request is new, the record, the card, the
delegations of the person. That step writes or it does not, and refuses nobody: where it
does not write, the click is looked at as any other.
"""

from __future__ import annotations

from twokey.bot.ids import Action, BadSeal, unseal, verify
from twokey.bot.interactions import Clicked
from twokey.bot.listener_context import ListenerContext
from twokey.bot.listeners.router import Said
from twokey.bot.listeners.verify_click import (
    Target,
    displayed,
    log_outcome,
    outcome_reply,
)
from twokey.gateway.approvals.decisions import Approve, Decided
from twokey.gateway.service.as_shown import Place
from twokey.gateway.store.cards import seen_request

_APPROVE = Approve()
_DECIDED = Decided.__name__.lower()
_SAID_NOTHING = Said(None)


async def approve_as_shown(
    ctx: ListenerContext, clicked: Clicked, *, is_seen: bool = True
) -> Said | None:
    """Approve the call of a button; None when nothing was written.

    Args:
        ctx: what the listener works with.
        clicked: the click.
        is_seen: its request was new and is remembered. Otherwise that is a part of
            this step, as is to keep its response URL.

    Returns:
        What to tell the person, once it is written.

    Raises:
        StoreUnavailable: when it is not known to be written.
    """
    target, action = _target(ctx, clicked), clicked.action
    if target is None:
        return None
    # A tenant remembers its requests, and who stands in for whom, in its own shard. The
    # script compares both, and a call of a tenant that is split may be in another.
    own = ctx.keys
    is_elsewhere = target.keys.shard != own.shard
    if is_elsewhere and (
        not is_seen or await ctx.service.delegations.given_to(action.user)
    ):
        return None
    # Where Slack has to be asked, a reading of the store takes no time beside it.
    reviewer = ctx.reviewer_alone(clicked, target.item)
    if reviewer is None:
        return None
    click = target.click(clicked.digest, displayed(ctx, target))
    place = Place(
        action.channel,
        action.message_ts,
        reviewer.user,
        display=click.display_digest,
        seen=None if is_seen else seen_request(own, clicked.digest),
        kept=() if is_seen else ctx.kept_with(clicked),
    )
    as_shown = ctx.service.as_shown
    if await as_shown.approve(click, reviewer, place):
        log_outcome(target, _DECIDED, _APPROVE.kind, reviewer)
        return _SAID_NOTHING
    outcome = await as_shown.decide(click, _APPROVE, reviewer, place=place)
    if outcome is None:
        return None
    log_outcome(target, outcome.kind, _APPROVE.kind, reviewer)
    return Said(outcome_reply(outcome, now_ms=target.now_ms))


def _target(ctx: ListenerContext, clicked: Clicked) -> Target | None:
    """Return what a button on a card is about, by what was shown of it last."""
    action = clicked.action
    is_on_card = bool(action.channel and action.message_ts) and not action.view_id
    if not is_on_card or action.team != ctx.team:
        return None
    try:
        sealed = unseal(action.value)
    except BadSeal:
        return None
    shown = ctx.service.as_shown.find(sealed.approval)
    keys = ctx.service.store.keys_of_approval(sealed.approval)
    if shown is None or keys is None or sealed.index is None:
        return None
    approval, purpose = shown.approval, Action.APPROVE
    for key in ctx.config.seal_keys:
        if verify(sealed, approval, key=key, team=ctx.team, purpose=purpose):
            return Target(approval, sealed.index, purpose, shown.now_ms, keys)
    return None
