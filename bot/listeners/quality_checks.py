"""Record the answers that measure reviews: to seeded defects and to spot checks.

Listeners of decisions find no record of a seeded defect. The router calls this module
before it reports an unknown card. Until it is answered it can be read like any other
call. A spot check asks, by two buttons on a card, whether a call was right.
"""

from __future__ import annotations

import logging

from keyturn.bot.blocks import notice
from keyturn.bot.cards.quality_checks import (
    ENDED,
    NOT_HERE,
    TOLD_APPROVED,
    TOLD_NOTICED,
)
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.delivery.seeded_defects import show_ended
from keyturn.bot.ids import PAGE, Action, BadSeal, Sealed, View, chosen, unseal, verify
from keyturn.bot.listener_context import (
    ListenerContext,
    NoRecord,
    UserFacingError,
    UserText,
)
from keyturn.bot.listeners.deciding import (
    open_first_page,
    record_page,
    require_every_page,
)
from keyturn.bot.listeners.home_tab import show
from keyturn.bot.listeners.router import AckBody, on_action
from keyturn.bot.listeners.targets import (
    Target,
    own_binding,
    update_view,
    verify_click,
)
from keyturn.bot.modals import details
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import label, template
from keyturn.bot.web import SlackError
from keyturn.gateway.approvals.decisions import Reviewer, Unknown
from keyturn.gateway.approvals.quality_checks import Seeded, SeededCard
from keyturn.gateway.service.submit.quality_checks import refusal
from keyturn.gateway.store.records.atomic_write import Loaded

logger = logging.getLogger(__name__)

_APPROVALS = frozenset({Action.APPROVE, Action.APPROVE_ROW})
_DECISIONS = _APPROVALS | {Action.EDIT, Action.REJECT, Action.RESPOND}
_TURNS = frozenset({Action.PAGE_BACK, Action.PAGE_NEXT})
_READS = _TURNS | {Action.VIEW_ALL}


_THANKS = template("Recorded, thank you.")


async def answered(
    ctx: ListenerContext, approval_id: str, reviewer: Reviewer, *, has_approved: bool
) -> UserText | None:
    """Count a decision; return the reply to the person, or None for another call.

    Raises:
        StoreUnavailable: the write is not confirmed.
    """
    card = (await ctx.service.seeded_defects.read()).card
    if card is None or card.shown.id != approval_id:
        return None
    return await _count(ctx, card, reviewer, has_approved=has_approved)


async def seeded_clicked(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    """Answer a click about a seeded defect."""
    name, value = clicked.action_id, clicked.value
    if name == Action.MORE:
        name, value = chosen(value)
    found = await ctx.service.seeded_defects.read()
    card, sealed = _ours(ctx, found, value, PAGE if name in _TURNS else name)
    if found.answer:
        return ENDED
    if name in _READS:
        await _show_page(ctx, clicked, card, sealed)
        return None
    if name not in _DECISIONS:
        return NOT_HERE
    reviewer = await ctx.reviewer_of(*clicked.who, card.shown.items[0])
    reviewer = reviewer.with_(gesture=clicked.gesture)
    has_approved = name in _APPROVALS
    at = (clicked.channel, clicked.message_ts)
    said = await _count(ctx, card, reviewer, has_approved=has_approved, at=at)
    if clicked.is_home:
        ctx.tasks.later(show(ctx, clicked.user), name="home")
    return said


async def seeded_submitted(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    """Accept the approval on the last page of the full view."""
    found = await ctx.service.seeded_defects.read()
    card, sealed = _ours(ctx, found, submitted.private_metadata, View.DETAILS)
    binding = await own_binding(ctx, submitted, View.DETAILS)
    if binding is None or binding.approval != card.shown.id:
        raise _unknown()
    item = card.shown.items[0]
    details.require_read(item, submitted.values)
    target = await _target(ctx, card, sealed, View.DETAILS)
    await require_every_page(ctx, target, submitted.user)
    reviewer = await ctx.reviewer_of(*submitted.who, item)
    reviewer = reviewer.with_(gesture=submitted.gesture)
    said = await _count(ctx, card, reviewer, has_approved=True)
    return {"response_action": "update", "view": notice("Not done", said)}


async def _count(
    ctx: ListenerContext,
    card: SeededCard,
    reviewer: Reviewer,
    *,
    has_approved: bool,
    at: tuple[str, str] = ("", ""),
) -> UserText:
    if (why := refusal(card, reviewer)) is not None:
        raise UserFacingError(label(why))
    seeded = ctx.service.seeded_defects
    if not await seeded.answer(card, reviewer, has_approved=has_approved):
        return ENDED
    logger.info("seeded.answered approved=%s user=%s", has_approved, reviewer.user)
    ctx.tasks.later(_show_ended(ctx, card, *at), name="seeded")
    return TOLD_APPROVED if has_approved else TOLD_NOTICED


async def _show_ended(
    ctx: ListenerContext, card: SeededCard, channel: str, ts: str
) -> None:
    ctx.home.changed.set()
    seeded = await ctx.service.seeded_defects.read()
    # The clicked message: there are two if the answer to a post was lost.
    here = seeded.with_(channel=channel, ts=ts) if channel and ts else seeded
    try:
        # Immediately; the publisher repeats it, in case this is lost.
        await show_ended(ctx.slack, here, card)
    except SlackError as error:
        logger.warning("seeded.not_sent why=%s", error)


async def _show_page(
    ctx: ListenerContext, clicked: Clicked, card: SeededCard, sealed: Sealed
) -> None:
    target = await _target(ctx, card, sealed, clicked.action_id)
    if not sealed.page:
        await open_first_page(ctx, clicked, target)
        return
    frame = ctx.frame(target.approval, target.now_ms)
    view = details.view(frame, target.item.index, sealed.page)
    await update_view(ctx, clicked, target, view)
    await record_page(ctx, target, clicked.user, sealed.page)


async def _target(
    ctx: ListenerContext, card: SeededCard, sealed: Sealed, purpose: str
) -> Target:
    now_ms = await ctx.now_ms()
    return Target(Loaded(card.shown, now_ms), sealed.index, purpose, ctx.keys)


def _ours(
    ctx: ListenerContext, found: Seeded, value: str, purpose: str
) -> tuple[SeededCard, Sealed]:
    """Return the seeded card, and the bot's seal in a button or form for it.

    Raises:
        NoRecord: there is no such card or seal.
    """
    try:
        sealed = unseal(value)
    except BadSeal:
        raise _unknown() from None
    card, keys = found.card, ctx.config.seal_keys
    if card is None or not any(
        verify(sealed, card.shown, key=key, team=ctx.team, purpose=purpose)
        for key in keys
    ):
        raise _unknown()
    return card, sealed


def _unknown() -> NoRecord:
    return NoRecord(outcome_text(Unknown(), now_ms=0))


@on_action(Action.CHECK_RIGHT, Action.CHECK_WRONG)
async def _answer_check(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    action = Action(clicked.action_id)
    target = await verify_click(ctx, clicked, action)
    check = target.item.spot_check
    roles = check.of if check else ()
    user, team = clicked.who
    checks = ctx.service.spot_checks
    groups = checks.usergroups(*roles)
    # Not fresh: it decides nothing, so an answer of Slack that is a minute old
    # suffices.
    reviewer = await ctx.reviewers.resolve(
        user, user_team=team, groups=groups, fresh=False
    )
    why = await checks.answer(
        target.approval.id,
        target.item.index,
        reviewer.with_(gesture=clicked.gesture),
        is_right=action is Action.CHECK_RIGHT,
    )
    logger.info(
        "spot_check.answered answer=%s refused=%s approval=%s user=%s",
        action,
        bool(why),
        target.approval.id,
        user,
    )
    if why:
        raise UserFacingError(label(why))
    return _THANKS
