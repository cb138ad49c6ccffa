"""Decide several calls by one form: those of a card, or of separate approvals.

Calls of a card are decided all at once, or each by its box in one form, all or nothing.

Calls of separate approvals are reviewed together from the Home tab, as a list that has
no card. Calls that ended or changed since the form was opened are left out, and the
person confirms the others once more.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import LiteralString

from keyturn.bot.blocks import ensure_valid_view
from keyturn.bot.cards.call_rows import decided_alone
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.queue import MAX_TOGETHER, decidable_in_row
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners import targets
from keyturn.bot.listeners.deciding import check_edit, require_full_view
from keyturn.bot.listeners.home_tab import show
from keyturn.bot.listeners.reading import read_each, waits_for
from keyturn.bot.listeners.router import AckBody, on_action, on_submit
from keyturn.bot.listeners.targets import Target
from keyturn.bot.modals import call_form, choose, edit
from keyturn.bot.modals.choose import Choice, opened
from keyturn.bot.modals.form import InvalidInputs, errors_by_block
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import Template, joined, label, template
from keyturn.bot.web import SlackError
from keyturn.gateway.approvals import decisions
from keyturn.gateway.approvals.gestures import Partition
from keyturn.gateway.approvals.record import Approval, Item, approval_of
from keyturn.gateway.protocol.records import Verb

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
    target = await targets.verify_click(ctx, clicked, Action.APPROVE_ALL)
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
        ctx, target, {item.index: decisions.Approve() for item in waiting}, clicked
    )
    return batch_reply(outcome)


@on_action(Action.REJECT_ALL)
async def _ask_reason(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await targets.verify_click(ctx, clicked, Action.REJECT_ALL)
    await _require_permission(ctx, target, Verb.REJECT, clicked)
    view = call_form.rejection_of_all_form(ctx.frame(target.approval, target.now_ms))
    await targets.open_view(ctx, clicked, target, view)


@on_submit(View.REJECT_ALL)
async def _reject_all(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await targets.verify_submission(ctx, submitted, View.REJECT_ALL)
    waiting = [item for item in target.approval.items if item.is_pending]
    reason = call_form.submitted_reason(submitted.values, waiting)
    rejection = decisions.Reject(reason=reason)
    outcome = await decide_batch(
        ctx, target, {item.index: rejection for item in waiting}, submitted
    )
    is_recorded = isinstance(outcome, decisions.GestureDecided)
    return targets.closing_reply(batch_reply(outcome), is_recorded=is_recorded)


def _first_waiting(target: Target) -> Item:
    # The seal covers which calls are pending, so there is one; all need the same
    # people.
    return next(item for item in target.approval.items if item.is_pending)


async def _require_permission(
    ctx: ListenerContext, target: Target, verb: Verb, clicked: Clicked
) -> None:
    """Refuse a person who may not decide the first call; the others need the same."""
    first = replace(target, index=_first_waiting(target).index)
    await targets.require_permission(
        ctx, await targets.of_member(ctx, first), verb, clicked.who
    )


@on_action(Action.CHOOSE)
async def _open(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await targets.verify_click(ctx, clicked, Action.CHOOSE)
    allowed = _first_waiting(target).allow
    verb = Verb.APPROVE if Verb.APPROVE in allowed else Verb.REJECT
    await _require_permission(ctx, target, verb, clicked)
    frame = await _frame(ctx, target)
    choice = opened(frame.approval)
    view = choose.view(frame, choice)
    kept = choice.model_dump_json()
    await targets.open_view(ctx, clicked, target, view, staged=kept)


@on_action(Action.CHOOSE_EDIT)
async def _edit(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await targets.verify_click(ctx, clicked, Action.CHOOSE_EDIT)
    await targets.require_permission(ctx, target, Verb.EDIT, clicked.who)
    await require_full_view(ctx, target, clicked.user)
    frame = ctx.frame(target.approval, target.now_ms)
    parent = clicked.view_id
    choice, shown = await _shown_in(ctx, parent, target)
    is_again = shown.index in choice.edits
    view = edit.view(frame, target.item.index, is_staged=True, is_again=is_again)
    await targets.open_view(ctx, clicked, target, view, parent=parent)


@on_action(Action.CHOOSE_ORDER)
async def _sort(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await targets.verify_click(ctx, clicked, Action.CHOOSE_ORDER)
    binding = await targets.find_binding(ctx, clicked.view_id)
    staged = Choice.model_validate_json(binding.staged) if binding else Choice()
    frame = await _frame(ctx, target)
    order = targets.sealed_value(ctx, clicked).page - 1
    choice = choose.sorted_by(frame.approval, order, clicked.values, staged)
    await _redraw(ctx, clicked.view_id, clicked.user, target, choice)


@on_submit(View.CHOOSE_EDIT)
async def _keep_edit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await targets.verify_submission(ctx, submitted, View.CHOOSE_EDIT)
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
    staged = decisions.Edit(args=said.args, reason=said.reason)
    await _stage(ctx, submitted, target, staged)
    # Slack closes this form, and shows the one below it.
    return {}


async def _stage(
    ctx: ListenerContext, submitted: Submitted, target: Target, staged: decisions.Edit
) -> None:
    """Store an edit in the form below, and show it there."""
    pushed = await targets.find_binding(ctx, submitted.view_id)
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
    await targets.bind_view(ctx, view_id, user, whole, view, staged=kept)
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
    binding = await targets.find_binding(ctx, view_id)
    if binding is None:
        raise UserFacingError(targets.NOT_BOUND)
    loaded = await ctx.service.read(binding.approval)
    items = loaded.approval.items if loaded else ()
    place = next((one.index for one in items if one.id == target.item.id), None)
    if loaded is None or place is None:
        raise UserFacingError(_LEFT_CARD)
    shown = replace(target, loaded=loaded, index=place)
    return Choice.model_validate_json(binding.staged), shown


async def _frame(
    ctx: ListenerContext, target: Target, evaluated: Sequence[Approval] = ()
) -> Frame:
    """Return the frame of a form, with what is known of its calls now.

    ``evaluated`` are its approvals, if they were just read.
    """
    approval = target.approval
    if not evaluated:
        loaded = await ctx.service.read_as_of_now(approval.id)
        evaluated = [loaded.approval] if loaded else []
    now = {item.id: item for one in evaluated for item in one.items}
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
    await targets.bind_view(ctx, submitted.view_id, user, target, view, staged=kept)
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
    told = None
    if choice.is_list:
        ctx.tasks.later(show(ctx, submitted.user), name="home")
        told = await _count_seeded(ctx, target, partition, submitted)
    if told is not None and not any(partition.values()):
        return targets.closing_reply(told, is_recorded=True)
    outcome = await decide_batch(
        ctx, target, partition, submitted, is_list=choice.is_list
    )
    is_recorded = isinstance(outcome, decisions.GestureDecided)
    reply = told if told and is_recorded else batch_reply(outcome)
    return targets.closing_reply(reply, is_recorded=is_recorded)


async def _count_seeded(
    ctx: ListenerContext,
    target: Target,
    partition: dict[int, decisions.Decision | None],
    submitted: Submitted,
) -> UserText | None:
    """Count the decision on a seeded defect, and take it out of a list's partition.

    Returns:
        The reply to the person; None if they decided none.
    """
    seeded = await ctx.service.seeded_defects.waiting()
    for item in target.approval.items if seeded else ():
        approval_id, _ = approval_of(item.id)
        if seeded and approval_id == seeded.approval.id:
            decision = partition.pop(item.index, None)
            reviewer = await ctx.reviewer_of(*submitted.who, item)
            reviewer = reviewer.with_(gesture=submitted.gesture)
            approves = isinstance(decision, decisions.Approve)
            if decision is not None:
                return await targets.answered(
                    ctx, approval_id, reviewer, has_approved=approves
                )
    return None


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
        target = await targets.verify_submission(ctx, submitted, purpose)
    except UserFacingError:
        moved = await targets.find_moved(ctx, submitted, purpose)
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
    *,
    is_list: bool = False,
) -> decisions.GestureOutcome:
    """Submit a decision on every pending call, all or nothing.

    Args:
        ctx: the listener's dependencies.
        target: the batch that the reviewer saw.
        partition: the decision on each pending call.
        interaction: the click or submitted form, with person and signed request.
        is_list: the calls are on no common card, so the audit log names none.
    """
    decided = [index for index, decision in partition.items() if decision]
    items = [target.approval.items[index] for index in decided]
    click = await targets.click_on(ctx, target, interaction)
    reviewer, voters = await ctx.deciders_of(
        *interaction.who, *items, delegations=target.delegations
    )
    reviewer = reviewer.with_(gesture=interaction.gesture)
    if is_list:
        click = click.with_(approval="")
    outcome = await ctx.service.decide_card(
        target.approval, click, partition, reviewer, voters=voters
    )
    targets.log_outcome(target, outcome.kind, "batch", reviewer)
    return outcome


def batch_reply(outcome: decisions.GestureOutcome) -> UserText | None:
    """Return the facts that the card does not show: counted votes, and refusals."""
    if isinstance(outcome, decisions.GestureDecided):
        return _decided_reply(outcome)
    if not isinstance(outcome, decisions.GestureRefused):
        return outcome_text(outcome)
    first = min(outcome.refusals)
    refusal = outcome.refusals[first]
    nothing = template("Nothing was recorded, because of call {n}.", n=first + 1)
    # Sentences of `Invalid` may quote arguments, so only a form shows them.
    why = outcome_text(refusal)
    if isinstance(refusal, decisions.Invalid):
        why = template(
            "The policy may ask for a reason now: please open that call from the card."
        )
    if isinstance(why, Template):
        return joined(" ", [nothing, why])
    # Plain text, because it names roles of the policy.
    return label(f"{nothing.text} {why.text}")


def _decided_reply(outcome: decisions.GestureDecided) -> UserText | None:
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


@on_action(Action.REVIEW)
async def _open_review(ctx: ListenerContext, clicked: Clicked) -> None:
    asked = clicked.value.split()
    # The value only lists the calls: permissions are checked here, and again for each
    # decision.
    if not clicked.is_home or clicked.team != ctx.team or len(asked) > MAX_TOGETHER:
        logger.warning("click.refused why=no_review")
        raise UserFacingError(_NOTHING_WAITS)
    found = await _reviewable(ctx, clicked.user, asked)
    ids = [one.id for one in found]
    loaded = await ctx.service.list_together(ids) if ids else None
    # A call that changed since it was checked may need its card.
    if loaded is None or loaded.approval.rev != sum(one.rev for one in found):
        ctx.tasks.later(show(ctx, clicked.user), name="home")
        raise UserFacingError(_NOTHING_WAITS)
    target = Target(loaded, None, View.CHOOSE, ctx.keys)
    frame = await _frame(ctx, target, found)
    left_out = len(asked) - len(loaded.approval.items)
    choice = opened(frame.approval, is_list=True, left_out=left_out)
    view, kept = choose.view(frame, choice), choice.model_dump_json()
    await targets.open_view(ctx, clicked, target, view, staged=kept)


async def _reviewable(
    ctx: ListenerContext, user: str, asked: Sequence[str]
) -> list[Approval]:
    """Return the approvals of those calls that a person may decide together."""
    loaded = await read_each(ctx, dict.fromkeys(approval_of(one)[0] for one in asked))
    found = [(await ctx.service.as_of_now(one)).approval for one in loaded]
    pending = [item for one in found for item in one.items if item.is_pending]
    reviewer = await ctx.reviewer_of(user, ctx.team, *pending)
    now_ms = max((one.now_ms for one in loaded), default=0)
    kinds: list[tuple[tuple[str, str], Approval]] = []
    for approval in found:
        item = decidable_in_row(approval)
        if item is None or now_ms >= approval.expires_at_ms:
            continue
        if waits_for(reviewer, approval, item):
            kinds.append(((item.tool, approval.agent), approval))
    # One tool and agent per form, because its heading names them for all calls.
    return [approval for kind, approval in kinds if kind == kinds[0][0]]
