"""Decide several calls by one form: those of a card, or of separate approvals.

Calls of a card are decided all at once, or each by its box in one form, all or nothing.

Calls of separate approvals are reviewed together from the Home tab. The form is bound
on the server to the calls that it showed, each with its version and hash. They are
decided in one write, without those that ended or changed since. The last page shows the
result of each.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import LiteralString

from keyturn.bot.blocks import ensure_valid_view
from keyturn.bot.cards.call_rows import decided_alone
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.listing import call_title
from keyturn.bot.cards.queue import MAX_TOGETHER, decidable_in_row
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.cards.states import counted_votes
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.deciding import check_edit, require_full_view
from keyturn.bot.listeners.home_tab import show
from keyturn.bot.listeners.reading import read_each, waits_for
from keyturn.bot.listeners.router import AckBody, on_action, on_submit
from keyturn.bot.listeners.seeded_answers import answered
from keyturn.bot.listeners.targets import (
    NOT_BOUND,
    Target,
    bind_view,
    click_on,
    closing_reply,
    find_binding,
    find_moved,
    log_outcome,
    of_member,
    open_modal,
    open_view,
    own_binding,
    require_permission,
    sealed_value,
    verify_click,
    verify_submission,
)
from keyturn.bot.modals import call_form, choose, edit
from keyturn.bot.modals.choose import Came, Choice, Result, Review, opened
from keyturn.bot.modals.form import InvalidInputs, errors_by_block
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import Template, joined, label, template
from keyturn.bot.web import SlackError
from keyturn.gateway.approvals.deciding import ALREADY_APPROVED
from keyturn.gateway.approvals.decisions import (
    Approve,
    Click,
    Edit,
    GestureDecided,
    GestureOutcome,
    GestureRefused,
    Invalid,
    Outcome,
    Reject,
    Reviewer,
    Unknown,
    Voted,
)
from keyturn.gateway.approvals.gestures import Choice as CallChoice
from keyturn.gateway.approvals.gestures import Gesture, Partition
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.protocol.records import Verb
from keyturn.gateway.store.reviewers.cards import ViewBinding

logger = logging.getLogger(__name__)

_LEFT_CARD = (
    "Your edit was not kept: the call now has its own card. Please edit it there."
)
_NOTHING_LEFT: LiteralString = (
    "The calls you chose changed or were decided in the meantime, so nothing was "
    "recorded. Please look at the card again."
)


@on_action(Action.APPROVE_ALL)
async def _approve_all(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.APPROVE_ALL)
    approval = target.approval
    waiting = [item for item in approval.items if item.is_pending]
    # `decide_batch` leaves out calls that only the current policy escalates, and names
    # them.
    if decided_alone(approval):
        raise UserFacingError(
            "Nothing was recorded: escalated calls, calls that need a reason and "
            "shortened calls need their own review."
        )
    outcome = await decide_batch(
        ctx, target, {item.index: Approve() for item in waiting}, clicked
    )
    return batch_reply(outcome)


@on_action(Action.REJECT_ALL)
async def _ask_reason(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.REJECT_ALL)
    await _require_permission(ctx, target, Verb.REJECT, clicked)
    view = call_form.rejection_of_all_form(ctx.frame(target.approval, target.now_ms))
    await open_view(ctx, clicked, target, view)


@on_submit(View.REJECT_ALL)
async def _reject_all(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.REJECT_ALL)
    waiting = [item for item in target.approval.items if item.is_pending]
    reason = call_form.submitted_reason(submitted.values, waiting)
    rejection = Reject(reason=reason)
    outcome = await decide_batch(
        ctx, target, {item.index: rejection for item in waiting}, submitted
    )
    return _form_reply(outcome)


def _first_waiting(target: Target) -> Item:
    # The seal covers which calls are pending, so there is one; all need the same
    # people.
    return next(item for item in target.approval.items if item.is_pending)


async def _require_permission(
    ctx: ListenerContext, target: Target, verb: Verb, clicked: Clicked
) -> None:
    """Refuse a person who may not decide the first call; the others need the same."""
    first = replace(target, index=_first_waiting(target).index)
    await require_permission(ctx, await of_member(ctx, first), verb, clicked.who)


@on_action(Action.CHOOSE)
async def _open(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.CHOOSE)
    allowed = _first_waiting(target).allow
    verb = Verb.APPROVE if Verb.APPROVE in allowed else Verb.REJECT
    await _require_permission(ctx, target, verb, clicked)
    frame = await _frame(ctx, target)
    choice = opened(frame.approval)
    view = choose.view(frame, choice)
    kept = choice.model_dump_json()
    await open_view(ctx, clicked, target, view, staged=kept)


@on_action(Action.CHOOSE_EDIT)
async def _edit(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.CHOOSE_EDIT)
    await require_permission(ctx, target, Verb.EDIT, clicked.who)
    await require_full_view(ctx, target, clicked.user)
    frame = ctx.frame(target.approval, target.now_ms)
    parent = clicked.view_id
    choice, shown = await _shown_in(ctx, parent, target)
    is_again = shown.index in choice.edits
    view = edit.view(frame, target.item.index, is_staged=True, is_again=is_again)
    await open_view(ctx, clicked, target, view, parent=parent)


@on_action(Action.CHOOSE_ORDER)
async def _sort(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.CHOOSE_ORDER)
    binding = await find_binding(ctx, clicked.view_id)
    staged = Choice.model_validate_json(binding.staged) if binding else Choice()
    frame = await _frame(ctx, target)
    order = sealed_value(ctx, clicked).page - 1
    choice = choose.sorted_by(frame.approval, order, clicked.values, staged)
    await _redraw(ctx, clicked.view_id, clicked.user, target, choice)


@on_submit(View.CHOOSE_EDIT)
async def _keep_edit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.CHOOSE_EDIT)
    item = target.item
    said = edit.submitted(item, submitted.values)
    if not said.changed:
        nothing = "Nothing is changed. Close this form to leave the call as it is."
        raise InvalidInputs({Input.REASON.value: nothing})
    errors, raised = await check_edit(ctx, target, said.args)
    if raised is not None:
        raise UserFacingError(
            "Your edit was not kept: with this change the call needs its own review. "
            "Open the call from the card and edit it there."
        )
    if errors:
        raise InvalidInputs(errors_by_block(item, errors))
    staged = Edit(args=said.args, reason=said.reason)
    await _stage(ctx, submitted, target, staged)
    # Slack closes this form, and shows the one below it.
    return {}


async def _stage(
    ctx: ListenerContext, submitted: Submitted, target: Target, staged: Edit
) -> None:
    """Store an edit in the form below, and show it there."""
    pushed = await find_binding(ctx, submitted.view_id)
    parent = pushed.parent if pushed else ""
    choice, shown = await _shown_in(ctx, parent, target)
    # A call decided in the meantime is no longer part of the choice.
    waiting = {item.index for item in shown.approval.items if item.is_pending}
    edits = {i: one for i, one in choice.edits.items() if i in waiting}
    edits |= {shown.item.index: staged}
    choice = choice.with_(edits=edits)
    await _redraw(ctx, parent, submitted.user, shown, choice)


async def _redraw(
    ctx: ListenerContext, view_id: str, user: str, target: Target, choice: Choice
) -> None:
    """Show a form again with a changed choice, and store the choice."""
    whole = replace(target, index=None, purpose=View.CHOOSE)
    view = choose.view(await _frame(ctx, target), choice)
    ensure_valid_view(view)
    kept = choice.model_dump_json()
    # Stored before it is shown: then the form always shows the choice that is decided.
    await bind_view(ctx, view_id, user, whole, view, staged=kept)
    try:
        await ctx.slack.call("views.update", view_id=view_id, view=view)
    except SlackError as error:
        logger.warning("view.not_updated why=%s", error)
        raise UserFacingError(
            "Your change is kept, but Slack did not show it. The next page shows it."
        ) from None


async def _shown_in(
    ctx: ListenerContext, view_id: str, target: Target
) -> tuple[Choice, Target]:
    """Return the choice in a form, and the target with the call's index on the card.

    A collected card has several approvals, so this index differs from the approval's.

    Raises:
        UserFacingError: the form is unknown, or the call left the card and must be
            decided separately.
    """
    binding = await find_binding(ctx, view_id)
    if binding is None:
        raise UserFacingError(NOT_BOUND)
    loaded = await ctx.service.read(binding.approval)
    items = loaded.approval.items if loaded else ()
    place = next((one.index for one in items if one.id == target.item.id), None)
    if loaded is None or place is None:
        raise UserFacingError(_LEFT_CARD)
    shown = replace(target, loaded=loaded, index=place)
    return Choice.model_validate_json(binding.staged), shown


async def _frame(ctx: ListenerContext, target: Target) -> Frame:
    """Return the frame of a form, with what is known of its calls now."""
    approval = target.approval
    loaded = await ctx.service.read_as_of_now(approval.id)
    now = {item.id: item for item in loaded.approval.items} if loaded else {}
    items = (
        item.with_(is_frozen=now[item.id].is_frozen, past=now[item.id].past)
        for item in approval.items
        if item.id in now
    )
    return ctx.frame(approval.replacing(*items), target.now_ms)


@on_submit(View.CHOOSE)
async def _review(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target, staged, has_moved = await _found(ctx, submitted, View.CHOOSE)
    items = staged.offered(target.approval)
    choice = choose.submitted(items, submitted.values, staged)
    return await _confirm(ctx, submitted, target, choice, is_again=has_moved)


async def _confirm(
    ctx: ListenerContext,
    submitted: Submitted,
    target: Target,
    choice: Choice,
    *,
    is_again: bool,
) -> AckBody:
    """Return the response that shows the last page, bound to the current batch."""
    view = choose.confirmation(await _frame(ctx, target), choice, is_again=is_again)
    user, kept = submitted.user, choice.model_dump_json()
    await bind_view(ctx, submitted.view_id, user, target, view, staged=kept)
    return {"response_action": "update", "view": view}


@on_submit(View.CHOOSE_CONFIRM)
async def _decide(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target, choice, has_moved = await _found(ctx, submitted, View.CHOOSE_CONFIRM)
    if has_moved:
        choice = choice.without_moved(target.approval)
        if not choice.size:
            raise UserFacingError(_NOTHING_LEFT)
        return await _confirm(ctx, submitted, target, choice, is_again=True)
    items = [target.approval.items[index] for index in choice.reject]
    reason = call_form.submitted_reason(submitted.values, items)
    partition = choice.partition(target.approval, reason)
    outcome = await decide_batch(ctx, target, partition, submitted)
    return _form_reply(outcome)


async def _found(
    ctx: ListenerContext, submitted: Submitted, purpose: View
) -> tuple[Target, Choice, bool]:
    """Return the current batch, the choice, and whether the batch changed since.

    If the batch changed, the choice is kept: nothing is decided yet, and the next page
    shows the rest of the choice.

    Raises:
        UserFacingError: the form is another person's, or the batch has no pending call.
    """
    # The choice is from the binding that was verified, without a second read.
    try:
        target = await verify_submission(ctx, submitted, purpose)
    except UserFacingError:
        moved = await find_moved(ctx, submitted, purpose)
        if moved is None:
            raise
        choice = Choice.model_validate_json(moved.staged)
        if choice.is_of(moved.approval):
            raise
        return moved, choice, True
    return target, Choice.model_validate_json(target.staged), False


async def decide_batch(
    ctx: ListenerContext,
    target: Target,
    partition: Partition,
    interaction: Clicked | Submitted,
) -> GestureOutcome:
    """Submit a decision on every pending call, all or nothing.

    Args:
        ctx: the listener's dependencies.
        target: the batch that the reviewer saw.
        partition: the decision on each pending call.
        interaction: the click or submitted form, with person and signed request.
    """
    decided = [index for index, decision in partition.items() if decision]
    items = [target.approval.items[index] for index in decided]
    reviewer, voters = await ctx.deciders_of(
        *interaction.who, *items, delegations=target.delegations
    )
    reviewer = reviewer.with_(gesture=interaction.gesture)
    click = click_on(ctx, target, interaction)
    outcome = await ctx.service.decide_card(
        target.approval, click, partition, reviewer, voters=voters
    )
    log_outcome(target.approval.id, target.index, outcome.kind, "batch", reviewer)
    return outcome


def batch_reply(outcome: GestureOutcome) -> UserText | None:
    """Return the facts that the card does not show: counted votes, and refusals."""
    if isinstance(outcome, GestureDecided):
        return _decided_reply(outcome)
    if not isinstance(outcome, GestureRefused):
        return outcome_text(outcome)
    first = min(outcome.refusals)
    refusal = outcome.refusals[first]
    nothing = template("Nothing was recorded, because of call {n}.", n=first + 1)
    # Sentences of `Invalid` may quote arguments, so only a form shows them.
    why = outcome_text(refusal)
    if isinstance(refusal, Invalid):
        why = template(
            "The policy may ask for a reason now: please open that call from the card."
        )
    if isinstance(why, Template):
        return joined(" ", [nothing, why])
    # Plain text, because it names roles of the policy.
    return label(f"{nothing.text} {why.text}")


def _form_reply(outcome: GestureOutcome) -> AckBody:
    """Return the response to a submitted modal: close it, or show the reply in it."""
    is_recorded = isinstance(outcome, GestureDecided)
    return closing_reply(batch_reply(outcome), is_recorded=is_recorded)


def _decided_reply(outcome: GestureDecided) -> UserText | None:
    sentences: list[Template] = []
    if waiting := len(outcome.waiting):
        text: LiteralString = (
            "Your decision is recorded. More people are needed for {n} of the calls."
        )
        sentences.append(template(text, n=waiting))
    if left_out := len(outcome.left_out):
        text = "{n} of the calls need their own review: open them from the card."
        sentences.append(template(text, n=left_out))
    return joined(" ", sentences) if sentences else None


_NOTHING_WAITS = template(
    "None of these calls waits for you any more, or each needs its own review. "
    "Nothing was recorded; the list shows what waits now."
)
_GONE = "a call that is not known any more"
_ON_ITS_OWN = template("It needs its own review: please open it from the list.")


@on_action(Action.REVIEW)
async def _open_review(ctx: ListenerContext, clicked: Clicked) -> None:
    asked = clicked.value.split()
    # The value only lists the calls: permissions are checked here, and again for each
    # decision.
    if not clicked.is_home or clicked.team != ctx.team or len(asked) > MAX_TOGETHER:
        logger.warning("click.refused why=no_review")
        raise UserFacingError(_NOTHING_WAITS)
    items, seen = await _reviewable(ctx, clicked.user, asked)
    if not items:
        ctx.tasks.later(show(ctx, clicked.user), name="home")
        raise UserFacingError(_NOTHING_WAITS)
    layout = choose.layout_of([("", range(len(items)))])
    kept = Review(calls=seen, choice=Choice(layout=layout))
    form = choose.review_form(items, kept, left_out=len(asked) - len(items))
    view_id = await open_modal(ctx, clicked, form)
    # As in `open_view`: a submission without a binding is refused.
    await _bind(ctx, view_id, clicked.user, View.REVIEW, kept)


async def _reviewable(
    ctx: ListenerContext, user: str, asked: Sequence[str]
) -> tuple[list[Item], tuple[Click, ...]]:
    """Return those calls that a person may decide together, in their current state."""
    loaded = await read_each(ctx, dict.fromkeys(approval_of(one)[0] for one in asked))
    found = [(await ctx.service.as_of_now(one)).approval for one in loaded]
    pending = [item for one in found for item in one.items if item.is_pending]
    reviewer = await ctx.reviewer_of(user, ctx.team, *pending)
    now_ms = max((one.now_ms for one in loaded), default=0)
    items: list[Item] = []
    seen: list[Click] = []
    for approval in found:
        item = decidable_in_row(approval)
        if item is None or now_ms >= approval.expires_at_ms:
            continue
        if not waits_for(reviewer, approval, item):
            continue
        # One tool and agent per form, because its heading names them for all calls.
        if items and (items[0].tool, items[0].ctx.agent) != (item.tool, item.ctx.agent):
            continue
        seen.append(
            Click(
                approval=approval.id,
                index=item.index,
                version=approval.version,
                action_hash=item.action_hash,
                # Part of a list: it approves no call that the policy now escalates.
                is_shared=True,
            )
        )
        items.append(item.with_(index=len(items)))
    return items, tuple(seen)


@on_submit(View.REVIEW)
async def _confirm_review(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    kept = await _bound(ctx, submitted, View.REVIEW)
    items = await _as_numbered(ctx, kept)
    choice = choose.submitted(items, submitted.values, kept.choice)
    kept = kept.with_(choice=choice)
    rejected = [item for item in items if item.index in choice.reject]
    page = choose.review_confirmation(rejected, kept)
    ensure_valid_view(page)
    user, view_id = submitted.user, submitted.view_id
    await _bind(ctx, view_id, user, View.REVIEW_CONFIRM, kept)
    return {"response_action": "update", "view": page}


@on_submit(View.REVIEW_CONFIRM)
async def _decide_review(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    """Decide the calls of a form in one write, and show the result of each.

    A call that ended or changed since would refuse the whole gesture. It is left out,
    and the gesture is made once more with the others.
    """
    kept = await _bound(ctx, submitted, View.REVIEW_CONFIRM)
    items = {item.index: item for item in await _as_numbered(ctx, kept)}
    rejected = [items[number] for number in kept.choice.reject if number in items]
    reason = call_form.submitted_reason(submitted.values, rejected)
    reviewer, voters = await ctx.deciders_of(*submitted.who, *items.values())
    reviewer = reviewer.with_(gesture=submitted.gesture)
    results = dict[int, tuple[Came, UserText | None]]()
    left = kept.choice.decisions(reason)
    while left:
        request = {"request_digest": submitted.digest}
        choices = {n: CallChoice(kept.calls[n].with_(**request), left[n]) for n in left}
        outcome = await ctx.service.decide_gesture(
            Gesture(choices, card=kept.click(submitted.digest)), reviewer, voters=voters
        )
        log_outcome(kept.digest, None, outcome.kind, "review", reviewer)
        results |= await _results(ctx, outcome, choices, reviewer)
        left = {n: one for n, one in left.items() if n not in results}
    ctx.tasks.later(show(ctx, submitted.user), name="home")
    found = [
        Result(n + 1, call_title(items[n]) if n in items else _GONE, *results[n])
        for n in sorted(results)
    ]
    return {"response_action": "update", "view": choose.results(found)}


async def _results(
    ctx: ListenerContext,
    outcome: GestureOutcome,
    choices: Mapping[int, CallChoice],
    reviewer: Reviewer,
) -> dict[int, tuple[Came, UserText | None]]:
    """Return the results of a gesture, by the numbers of the calls.

    If it was refused because of some calls, only those have a result.
    """
    if isinstance(outcome, GestureDecided):
        return {n: _result(outcome, n, one.click) for n, one in choices.items()}
    refusals: Mapping[int, Outcome] = (
        outcome.refusals
        if isinstance(outcome, GestureRefused)
        else dict.fromkeys(choices, outcome)
    )
    results = dict[int, tuple[Came, UserText | None]]()
    for number, refusal in refusals.items():
        click, decision = choices[number]
        said: UserText | None = None
        if isinstance(refusal, Unknown):
            approves = isinstance(decision, Approve)
            said = await answered(ctx, click.approval, reviewer, has_approved=approves)
        results[number] = (Came.NOT_DONE, said or outcome_text(refusal))
    return results


def _result(
    outcome: GestureDecided, number: int, click: Click
) -> tuple[Came, UserText | None]:
    if number in outcome.left_out:
        return Came.NOT_DONE, _ON_ITS_OWN
    if number in outcome.already:
        return Came.NOT_DONE, outcome_text(ALREADY_APPROVED)
    if number in outcome.waiting:
        approval = outcome.approvals[click.approval]
        count = counted_votes(approval.items[click.index])
        voted = Voted(
            approval=approval, index=click.index, have=count.have, need=count.need
        )
        return Came.COUNTED, outcome_text(voted)
    # A rejection by its requester withdraws a call.
    is_no = number in {*outcome.rejected, *outcome.withdrawn}
    return Came.REJECTED if is_no else Came.APPROVED, None


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
    binding = await own_binding(ctx, submitted, purpose)
    if binding is None or binding.action_hash != submitted.private_metadata:
        logger.warning("view.refused why=not_bound")
        raise UserFacingError(NOT_BOUND)
    return Review.model_validate_json(binding.staged)
