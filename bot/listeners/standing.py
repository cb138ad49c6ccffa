"""Propose, list and revoke standing approvals; check the people who gave them.

*Allow similar* approves the current call first, by its own rules. Then the standing
approval is proposed, and gets the same person's vote: two decisions, each atomic by
itself. If Slack has not confirmed its givers for some minutes, a standing approval
covers no call: people decide its calls as usual.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import LiteralString

from keyturn.bot.blocks import Block, context, first_rows, notice, section
from keyturn.bot.cards.refs import people, short_ref, when
from keyturn.bot.cards.special_cards import left_text
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import (
    ListenerContext,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from keyturn.bot.listeners import targets
from keyturn.bot.listeners.deciding import require_full_view
from keyturn.bot.listeners.reading import reader_access
from keyturn.bot.listeners.router import AckBody, on_action, on_submit
from keyturn.bot.listeners.targets import Target
from keyturn.bot.modals import allow_similar
from keyturn.bot.modals.form import InvalidInputs
from keyturn.bot.payload import Clicked, Command, Submitted
from keyturn.bot.text import NAME, fit, joined, label, template, untrusted
from keyturn.gateway.approvals.decisions import Approve, Decided, Forbidden, Voted
from keyturn.gateway.approvals.quorum import age_ms
from keyturn.gateway.approvals.record import Approval, approval_of
from keyturn.gateway.approvals.standing import bounds_of, givers
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.policy.standing import Chosen, Offer
from keyturn.gateway.protocol.records import Verb
from keyturn.gateway.store.records.atomic_write import Loaded

logger = logging.getLogger(__name__)

_CHANGED: LiteralString = (
    "The policy changed while this form was open. Nothing was recorded; please open "
    "it again from the card."
)


_ENTRIES = 10_000
"""Entries of the audit log that a form reads: Slack waits three seconds for it."""

_OVER = template("Already ended; nothing changed.")


@on_action(Action.ALLOW_SIMILAR)
async def _offer(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await targets.verify_click(ctx, clicked, Action.ALLOW_SIMILAR)
    await targets.require_permission(ctx, target, Verb.APPROVE, clicked.who)
    offer = _offered(ctx, target)
    past = await ctx.service.standing.past(
        target.approval, target.item.index, offer, entries=_ENTRIES
    )
    frame = ctx.frame(target.approval, target.now_ms)
    view = allow_similar.view(frame, target.item.index, offer, past)
    await targets.open_view(ctx, clicked, target, view, staged=_limits(offer))


def _offered(ctx: ListenerContext, target: Target) -> Offer:
    offer = ctx.service.standing.offer(target.approval, target.item.index)
    if isinstance(offer, str):
        raise UserFacingError(label(offer))
    return offer


def _limits(offer: Offer) -> str:
    return offer.rule.model_dump_json()


@on_submit(View.ALLOW_SIMILAR)
async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await targets.verify_submission(ctx, submitted, View.ALLOW_SIMILAR)
    await require_full_view(ctx, target, submitted.user)
    offer = _offered(ctx, target)
    # The free arguments and the sums come from the current policy. They have to equal
    # the ones in the form, because the vote below is given without another look.
    if target.staged != _limits(offer):
        raise UserFacingError(_CHANGED)
    chosen, reason = allow_similar.submitted(target.item, offer, submitted.values)
    index, standing = target.item.index, ctx.service.standing
    # Before anything is recorded: bounds that the policy does not permit.
    bounds = standing.bounds(target.approval, index, chosen, target.now_ms)
    if isinstance(bounds, str):
        raise InvalidInputs({Input.USES.value: bounds})
    approve = Approve(reason=reason)
    outcome = await targets.decide(ctx, target, approve, submitted)
    if not isinstance(outcome, Decided | Voted):
        return targets.form_reply(outcome)
    recorded = "This call is approved."
    if isinstance(outcome, Voted):
        recorded = "Your approval is recorded; more people are needed."
    try:
        return await _propose(ctx, target, chosen, approve, submitted, recorded)
    # From here on "nothing was recorded" would be untrue.
    except StoreUnavailable as error:
        logger.warning("standing.not_known id=%s why=%s", target.approval.id, error)
        told = "The channel shows whether similar calls are allowed."
        return _notice(f"{recorded} {told}")


def _notice(told: str) -> AckBody:
    view = notice("Allow similar calls", label(told))
    return {"response_action": "update", "view": view}


async def _propose(
    ctx: ListenerContext,
    target: Target,
    chosen: Chosen,
    approve: Approve,
    submitted: Submitted,
    recorded: str,
) -> AckBody:
    by = await ctx.reviewer_of(*submitted.who, target.item, decides=True)
    opened = await ctx.service.standing.propose(
        target.approval, target.item.index, chosen, by
    )
    if isinstance(opened, str):
        return _notice(f"{recorded} Nothing similar is allowed: {opened}")
    logger.info("standing.proposed approval=%s user=%s", opened.id, by.user)
    loaded = Loaded(opened, opened.created_at_ms)
    proposal = replace(target, loaded=loaded, index=0)
    outcome = await targets.decide(ctx, proposal, approve, submitted)
    return targets.form_reply(outcome)


@on_action(Action.REVOKE)
async def _revoke(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await targets.verify_click(ctx, clicked, Action.REVOKE)
    # Stopping needs less certainty than giving: Slack's answers of the last minute
    # suffice.
    by = await ctx.reviewer_of(*clicked.who, target.item)
    result = await ctx.service.standing.revoke(
        target.approval.id, by.with_(gesture=clicked.gesture)
    )
    if isinstance(result, Forbidden):
        logger.info("standing.refused user=%s approval=%s", by.user, target.approval.id)
        raise UserFacingError(label(result.reason))
    return None if result else _OVER


@on_action(Action.USES)
async def _list(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await targets.verify_click(ctx, clicked, Action.USES)
    ids = [use.item for use in allow_similar.newest_uses(target.approval)]
    approvals = dict.fromkeys(approval_of(one)[0] for one in ids)
    found = await ctx.service.queue.read_each(approvals)
    items = {item.id: item for one in found for item in one.approval.items}
    await targets.open_modal(
        ctx, clicked, allow_similar.uses_list(target.approval, items)
    )


EVERY_S = 60.0
"""Seconds between two checks.

Slack's answer is valid for ten minutes, see `CHECKED_FOR_MS`.
"""


async def check_givers(ctx: ListenerContext) -> None:
    """Check the standing approvals until cancelled."""
    while True:
        try:
            await check_once(ctx)
        except StoreUnavailable as error:
            logger.warning("standing.not_checked why=%s", error)
        except any_failure() as error:  # the next look may do better
            log_failure(logger, error, "standing.check_failed")
        await asyncio.sleep(EVERY_S)


async def check_once(ctx: ListenerContext) -> None:
    """End invalid standing approvals, and confirm the givers of all others.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    standing = ctx.service.standing
    async for loaded in standing.in_force():
        item, now_ms = loaded.approval.items[0], await ctx.now_ms()
        users = dict.fromkeys(vote.by.user for vote in item.votes_now)
        people = [await ctx.reviewer_of(user, ctx.team, item) for user in users]
        # Slack's answers may be a minute old: the oldest of them counts.
        asked_ms = now_ms - max((age_ms(one) for one in people), default=0)
        await standing.confirm(loaded.approval, people, asked_ms=asked_ms)


_NONE = template("No standing approvals here.")
_MOST = 15


async def list_standing(ctx: ListenerContext, command: Command, _: str) -> AckBody:
    """List the standing approvals that the person may read, by their end.

    Raises:
        UserFacingError: explains a refusal.
    """
    found = [
        loaded.approval
        async for loaded in ctx.service.standing.in_force()
        if await reader_access(ctx, command.user, command.channel, loaded.approval)
    ]
    if not found:
        return {"text": to_mrkdwn(_NONE)}
    blocks = first_rows([*map(_rows, found)], _MOST)
    return {"text": f"Standing approvals in force: {len(found)}.", "blocks": blocks}


def _rows(standing: Approval) -> list[Block]:
    bounds = bounds_of(standing)
    name = f"{fit(bounds.tool, NAME)}, by {fit(bounds.agent, NAME)}"
    by = joined("", [template("Given by "), people(givers(standing))])
    until = template("until {at}", at=when(bounds.until_ms))
    ids = template("{id}", id=short_ref(standing.id))
    return [
        section(untrusted(name)),
        context(label(left_text(standing)), until, by, ids),
    ]
