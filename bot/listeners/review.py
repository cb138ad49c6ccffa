"""Decide calls of separate approvals together, from the Home tab.

The form is bound on the server to the calls that it showed, each with its version and
hash. Every call is decided by its own rules and written separately; the last page shows
the result of each. If the bot stops in the middle, each finished write counts once, and
the same form decides the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from keyturn.bot.blocks import Block, ensure_valid_view, notice
from keyturn.bot.cards.listing import call_title
from keyturn.bot.cards.queue import MAX_TOGETHER, decidable_in_row
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.ids import Action, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.home_tab import show
from keyturn.bot.listeners.quality_checks import answered
from keyturn.bot.listeners.queues import read_each, waits_for
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.targets import (
    NOT_BOUND,
    find_binding,
    log_outcome,
    open_modal,
    rejected_inputs,
    show_when_taken,
)
from keyturn.bot.modals import call_form, choose
from keyturn.bot.modals.call_form import SubmittedText
from keyturn.bot.modals.choose import Came, Result, Review, SeenCall
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import label, template
from keyturn.gateway.approvals.decisions import (
    Approve,
    Click,
    Decided,
    Decision,
    Reviewer,
    Unknown,
    Voted,
)
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.errors import CorruptRecord, StoreUnavailable
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service.deciding import Voters
from keyturn.gateway.store.cards import ViewBinding

logger = logging.getLogger(__name__)

_ANSWER_S = 1.5
"""Time until Slack gets an answer with the results so far: it waits three seconds."""

_GIVE_UP_S = 60.0
"""Time after which no further call is begun."""

_SETTLED_S = 1.0
"""Time for Slack to show the answer, before it is replaced."""

_NOTHING = template(
    "None of these calls waits for you any more, or each needs its own review. "
    "Nothing was recorded; the list shows what waits now."
)
_NOT_READ = template(
    "The gateway cannot read these calls right now, so nothing was recorded. Please "
    "try again in a moment."
)
_TIME_IS_UP = template("There was no time left for it. Please review it again.")
_UNCONFIRMED = template(
    "It is not confirmed that this was recorded. The list shows whether it still "
    "waits; if it does, please decide it again."
)
_UNREADABLE = template(
    "Its record cannot be read, so nothing was recorded. Please tell the gateway's "
    "operator."
)


def register(router: Router) -> None:
    """Answer the button above a group of the Home tab, and its form."""
    router.on_action(Action.REVIEW, _open)
    router.on_submit(View.REVIEW, _confirm)
    router.on_submit(View.REVIEW_CONFIRM, _decide)


@dataclass(slots=True)
class _Work:
    """The results of one submission so far.

    ``is_answered`` is set once Slack has got an answer without the results.
    """

    found: list[Result] = field(default_factory=list[Result])
    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    is_answered: bool = False


async def _open(ctx: ListenerContext, clicked: Clicked) -> None:
    action = clicked.action
    asked = action.value.split()
    # The value only lists the calls: permissions are checked here, and again for each
    # decision.
    if not action.is_home or action.team != ctx.team or len(asked) > MAX_TOGETHER:
        logger.warning("click.refused why=no_review")
        raise UserFacingError(_NOTHING)
    # Opened before the calls are read: a trigger id lives three seconds, and reading
    # forty calls may take longer.
    view_id = await open_modal(ctx, clicked, choose.loading(len(asked)))
    ctx.tasks.later(_fill(ctx, action.user, view_id, asked), name="review")


async def _fill(
    ctx: ListenerContext, user: str, view_id: str, asked: Sequence[str]
) -> None:
    """Show the calls in the modal that was opened for them."""
    try:
        page = await _form(ctx, user, view_id, asked)
    except StoreUnavailable as error:
        logger.warning("review.not_read user=%s why=%s", user, error)
        page = notice(label("Not done"), _NOT_READ)
    await show_when_taken(ctx, view_id, page)


async def _form(
    ctx: ListenerContext, user: str, view_id: str, asked: Sequence[str]
) -> Block:
    items, seen = await _offered(ctx, user, asked)
    if not items:
        ctx.tasks.later(show(ctx, user), name="home")
        return notice(label("Not done"), _NOTHING)
    kept = Review(calls=seen)
    form = choose.review_form(items, kept, left_out=len(asked) - len(items))
    ensure_valid_view(form)
    # Before it is shown: then the form always shows the calls that are decided.
    await _bind(ctx, view_id, user, View.REVIEW, kept)
    return form


async def _offered(
    ctx: ListenerContext, user: str, asked: Sequence[str]
) -> tuple[list[Item], tuple[SeenCall, ...]]:
    """Return those calls that a person may decide together, in their current state."""
    loaded = await read_each(ctx, dict.fromkeys(map(_approval_of, asked)))
    found = [(await ctx.service.as_of_now(one)).approval for one in loaded]
    pending = [item for one in found for item in one.items if item.is_pending]
    reviewer = await ctx.reviewer_of(user, ctx.team, *pending)
    now_ms = max((one.now_ms for one in loaded), default=0)
    items: list[Item] = []
    seen: list[SeenCall] = []
    for approval in found:
        item = decidable_in_row(approval)
        if item is None or now_ms >= approval.expires_at_ms:
            continue
        if not waits_for(reviewer, approval, item).is_given:
            continue
        # One tool and agent per form, because its heading names them for all calls.
        if items and (items[0].tool, items[0].ctx.agent) != (item.tool, item.ctx.agent):
            continue
        seen.append(
            SeenCall(
                approval=approval.id,
                index=item.index,
                version=approval.version,
                action_hash=item.action_hash,
            )
        )
        items.append(item.with_(index=len(items)))
    return items, tuple(seen)


async def _confirm(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    kept = await _bound(ctx, submitted, View.REVIEW)
    items = await _as_numbered(ctx, kept)
    choice, errors = choose.read(items, submitted.view.values, kept.choice)
    if errors:
        return rejected_inputs(errors)
    kept = kept.with_(choice=choice)
    rejected = [item for item in items if item.index in choice.reject]
    page = choose.review_confirmation(rejected, kept)
    ensure_valid_view(page)
    user, view_id = submitted.view.user, submitted.view.view_id
    await _bind(ctx, view_id, user, View.REVIEW_CONFIRM, kept)
    return {"response_action": "update", "view": page}


async def _decide(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    kept = await _bound(ctx, submitted, View.REVIEW_CONFIRM)
    said = await _reason(ctx, submitted, kept)
    if said.errors:
        return rejected_inputs(said.errors)
    work = _Work()
    # Outside this listener, which may time out, so that the series of writes is not
    # cut. If the bot stops in the meantime, the rest stays pending, on the list and on
    # its card.
    ctx.tasks.later(_record(ctx, submitted, kept, said.text, work), name="review")
    with suppress(TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            await work.is_done.wait()
    if work.is_done.is_set():
        return {"response_action": "update", "view": choose.results(work.found)}
    work.is_answered = True
    page = choose.progress(len(work.found), kept.choice.size)
    return {"response_action": "update", "view": page}


async def _reason(
    ctx: ListenerContext, submitted: Submitted, kept: Review
) -> SubmittedText:
    """Read the reason of the rejections."""
    items = await _as_numbered(ctx, kept) if kept.choice.reject else []
    rejected = [item for item in items if item.index in kept.choice.reject]
    return call_form.submitted_reason(submitted.view.values, rejected)


async def _record(
    ctx: ListenerContext, submitted: Submitted, kept: Review, reason: str, work: _Work
) -> None:
    """Decide the calls one after the other, and show the results."""
    try:
        await _decide_each(ctx, submitted, kept, reason, work)
    except StoreUnavailable as error:
        # Before the first decision: each decision reports its own failure.
        logger.warning("review.not_read user=%s why=%s", submitted.view.user, error)
        numbers = sorted((*kept.choice.approve, *kept.choice.reject))
        work.found = [Result(n + 1, "", Came.NOT_DONE, _NOT_READ) for n in numbers]
    work.is_done.set()
    if work.is_answered:
        # Slack could process this before the answer, which would then stay visible.
        await asyncio.sleep(_SETTLED_S)
        await show_when_taken(ctx, submitted.view.view_id, choose.results(work.found))
    await show(ctx, submitted.view.user)


async def _decide_each(
    ctx: ListenerContext, submitted: Submitted, kept: Review, reason: str, work: _Work
) -> None:
    until = time.monotonic() + _GIVE_UP_S
    items = {item.index: item for item in await _as_numbered(ctx, kept)}
    reviewer, voters = await ctx.deciders_of(*submitted.who, *items.values())
    reviewer = reviewer.with_(gesture=submitted.gesture)
    for number, decision in sorted(kept.choice.decisions(reason).items()):
        seen, item = kept.calls[number], items.get(number)
        # Part of a series: it approves no call that the policy now escalates.
        click = Click(
            **seen.model_dump(), request_digest=submitted.digest, is_shared=True
        )
        came: Came = Came.NOT_DONE
        sentence: UserText | None = _TIME_IS_UP
        if time.monotonic() < until:
            came, sentence = await _decided(ctx, click, decision, reviewer, voters)
        what = call_title(item) if item else "a call that is not known any more"
        work.found.append(Result(number + 1, what, came, sentence))


async def _decided(
    ctx: ListenerContext,
    click: Click,
    decision: Decision,
    reviewer: Reviewer,
    voters: Voters,
) -> tuple[Came, UserText | None]:
    """Decide one call by its own rules; return the result, and a sentence about it."""
    try:
        outcome = await ctx.service.decide(click, decision, reviewer, voters=voters)
    # The results of the other calls are reported anyway.
    except StoreUnavailable:
        return Came.NOT_DONE, _UNCONFIRMED
    except CorruptRecord:
        return Came.NOT_DONE, _UNREADABLE
    log_outcome(click.approval, click.index, outcome.kind, decision.kind, reviewer)
    if isinstance(outcome, Unknown):
        has_approved = isinstance(decision, Approve)
        if said := await answered(
            ctx, click.approval, reviewer, has_approved=has_approved
        ):
            return Came.NOT_DONE, said
    if isinstance(outcome, Decided):
        state = outcome.approval.items[outcome.index].state
        # A rejection by its requester withdraws a call.
        is_no = state in {ItemState.REJECTED, ItemState.WITHDRAWN}
        return Came.REJECTED if is_no else Came.APPROVED, None
    came = Came.COUNTED if isinstance(outcome, Voted) else Came.NOT_DONE
    return came, outcome_text(outcome, now_ms=await ctx.now_ms())


def _approval_of(item_id: str) -> str:
    """Return the approval of an item; "" for a malformed id."""
    with suppress(ValueError):
        return approval_of(item_id)[0]
    return ""


async def _as_numbered(ctx: ListenerContext, kept: Review) -> list[Item]:
    """Return the current calls of a form, by their place in it."""
    ids = dict.fromkeys(call.approval for call in kept.calls)
    found = {one.approval.id: one.approval for one in await read_each(ctx, ids)}
    return [
        found[call.approval].items[call.index].with_(index=number)
        for number, call in enumerate(kept.calls)
        if call.approval in found
    ]


async def _bind(
    ctx: ListenerContext, view_id: str, user: str, purpose: View, kept: Review
) -> None:
    """Store a form's calls, its person and the choice so far."""
    binding = ViewBinding(
        user=user,
        approval="",
        index=None,
        version=0,
        action_hash=kept.digest,
        purpose=purpose,
        staged=kept.model_dump_json(),
    )
    await ctx.service.store.cards.bind_view(ctx.keys, view_id, binding)


async def _bound(ctx: ListenerContext, submitted: Submitted, purpose: View) -> Review:
    """Return the calls of a submitted form, as they were shown to this person.

    Raises:
        UserFacingError: the form is unknown, another person's, or shows another list.
    """
    view = submitted.view
    binding = await find_binding(ctx, view.view_id)
    wanted = (view.user, purpose, view.private_metadata)
    if (
        binding is None
        or view.team != ctx.team
        or (binding.user, binding.purpose, binding.action_hash) != wanted
    ):
        logger.warning("view.refused why=not_bound")
        raise UserFacingError(template(NOT_BOUND))
    return Review.model_validate_json(binding.staged)
