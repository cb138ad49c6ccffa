"""Decide the waiting calls of a batch: all at once, or each in one form."""

from __future__ import annotations

import logging
from dataclasses import replace

from keyturn.bot.blocks import ensure_valid_view
from keyturn.bot.cards.call_rows import decided_alone
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.deciding import check_edit
from keyturn.bot.listeners.full_view import require_full_view
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.targets import (
    NOT_BOUND,
    Target,
    bind_view,
    closing_reply,
    displayed,
    find_binding,
    find_moved,
    log_outcome,
    of_member,
    open_view,
    rejected_inputs,
    require_permission,
    verify_click,
    verify_submission,
)
from keyturn.bot.modals import call_form, choose, edit
from keyturn.bot.modals.choose import Choice, StagedEdit, opened
from keyturn.bot.modals.form import errors_by_block
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import Template, joined, label, template
from keyturn.bot.web import SlackError
from keyturn.gateway.approvals.decisions import (
    Approve,
    Forbidden,
    GestureDecided,
    GestureOutcome,
    GestureRefused,
    Invalid,
    Reject,
)
from keyturn.gateway.approvals.gestures import Partition
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.records import Verb
from keyturn.gateway.protocol.strict_json import JsonObject

logger = logging.getLogger(__name__)

_LEFT_CARD = (
    "Your edit was not kept: the call now has its own card. Please edit it there."
)
_NOTHING_LEFT = template(
    "The calls you chose changed or were decided in the meantime, so nothing was "
    "recorded. Please look at the card again."
)


def register(router: Router) -> None:
    """Answer Approve all, Reject all and Choose, and their forms."""
    router.on_action(Action.APPROVE_ALL, _approve_all)
    router.on_action(Action.REJECT_ALL, _ask_reason)
    router.on_submit(View.REJECT_ALL, _reject_all)
    router.on_action(Action.CHOOSE, _open)
    router.on_action(Action.CHOOSE_EDIT, _edit)
    router.on_submit(View.CHOOSE_EDIT, _keep_edit)
    router.on_submit(View.CHOOSE, _review)
    router.on_submit(View.CHOOSE_CONFIRM, _decide)


async def _approve_all(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.APPROVE_ALL)
    approval = target.approval
    waiting = [item for item in approval.items if item.is_pending]
    # `decide_batch` leaves out calls that only the current policy escalates, and names
    # them.
    if decided_alone(approval):
        raise UserFacingError(
            template(
                "Nothing was recorded: escalated calls, calls that need a reason and "
                "shortened calls need their own review."
            )
        )
    outcome = await decide_batch(
        ctx, target, {item.index: Approve() for item in waiting}, clicked
    )
    return batch_reply(outcome, now_ms=target.now_ms)


async def _ask_reason(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.REJECT_ALL)
    await _require_permission(ctx, target, Verb.REJECT, clicked)
    view = call_form.rejection_of_all_form(ctx.frame(target.approval, target.now_ms))
    await open_view(ctx, clicked, target, view)


async def _reject_all(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.REJECT_ALL)
    waiting = [item for item in target.approval.items if item.is_pending]
    said = call_form.submitted_reason(submitted.view.values, waiting)
    if said.errors:
        return rejected_inputs(said.errors)
    rejection = Reject(reason=said.text)
    outcome = await decide_batch(
        ctx, target, {item.index: rejection for item in waiting}, submitted
    )
    return _form_reply(outcome, now_ms=target.now_ms)


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


async def _open(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.CHOOSE)
    allowed = _first_waiting(target).allow
    verb = Verb.APPROVE if Verb.APPROVE in allowed else Verb.REJECT
    await _require_permission(ctx, target, verb, clicked)
    choice = opened(target.approval)
    now = await _as_of_now(ctx, target)
    view = choose.view(ctx.frame(target.approval, target.now_ms), choice, now=now)
    kept = choice.model_dump_json()
    await open_view(ctx, clicked, target, view, staged=kept)


async def _edit(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.CHOOSE_EDIT)
    await require_permission(ctx, target, Verb.EDIT, clicked.who)
    await require_full_view(ctx, target, clicked.action.user)
    frame = ctx.frame(target.approval, target.now_ms)
    parent = clicked.action.view_id
    choice, shown = await _shown_in(ctx, parent, target)
    is_again = shown.index in choice.edits
    view = edit.view(frame, target.item.index, is_staged=True, is_again=is_again)
    await open_view(ctx, clicked, target, view, parent=parent)


async def _keep_edit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.CHOOSE_EDIT)
    item = target.item
    said = edit.submitted(item, submitted.view.values)
    if said.errors:
        return rejected_inputs(said.errors)
    if not said.changed:
        nothing = "Nothing is changed. Close this form to leave the call as it is."
        return rejected_inputs({Input.REASON.value: nothing})
    errors = await _problems(ctx, target, said.args)
    if errors:
        return rejected_inputs(errors)
    staged = StagedEdit(args=said.args, reason=said.reason)
    await _stage(ctx, submitted, target, staged)
    # Slack closes this form, and shows the one below it.
    return {}


async def _problems(
    ctx: ListenerContext, target: Target, args: JsonObject
) -> dict[str, str]:
    """Return, by block id, why an edit cannot be part of a decision on many calls.

    Raises:
        UserFacingError: the change raises the requirement, so the call must be decided
            separately.
    """
    errors, raised = await check_edit(ctx, target, args)
    if raised is not None:
        raise UserFacingError(
            template(
                "Your edit was not kept: with this change the call needs its own "
                "review. Open the call from the card and edit it there."
            )
        )
    return errors_by_block(target.item, errors)


async def _stage(
    ctx: ListenerContext, submitted: Submitted, target: Target, staged: StagedEdit
) -> None:
    """Store an edit in the form below, and show it there."""
    pushed = await find_binding(ctx, submitted.view.view_id)
    parent = pushed.parent if pushed else ""
    choice, shown = await _shown_in(ctx, parent, target)
    # A call decided in the meantime is no longer part of the choice.
    waiting = {item.index for item in shown.approval.items if item.is_pending}
    edits = {i: one for i, one in choice.edits.items() if i in waiting}
    edits |= {shown.item.index: staged}
    choice = choice.with_(edits=edits)
    whole = replace(shown, index=None, purpose=View.CHOOSE)
    now = await _as_of_now(ctx, shown)
    view = choose.view(ctx.frame(shown.approval, target.now_ms), choice, now=now)
    ensure_valid_view(view)
    kept = choice.model_dump_json()
    # Stored before it is shown: then the form always shows the choice that is decided.
    await bind_view(ctx, parent, submitted.view.user, whole, view, staged=kept)
    try:
        await ctx.slack.call("views.update", view_id=parent, view=view)
    except SlackError as error:
        logger.warning("view.not_updated why=%s", error)
        raise UserFacingError(
            template(
                "Your edit is kept, but Slack did not show it. The next page shows it."
            )
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
        raise UserFacingError(template(NOT_BOUND))
    loaded = await ctx.service.read(binding.approval)
    items = loaded.approval.items if loaded else ()
    place = next((one.index for one in items if one.id == target.item.id), None)
    if loaded is None or place is None:
        raise UserFacingError(template(_LEFT_CARD))
    shown = replace(target, loaded=loaded, index=place)
    return Choice.model_validate_json(binding.staged), shown


async def _as_of_now(ctx: ListenerContext, target: Target) -> tuple[Item, ...]:
    """Return the calls of a form, marked if a freeze stops them now."""
    loaded = await ctx.service.read_as_of_now(target.approval.id)
    items = loaded.approval.items if loaded else ()
    stopped = {item.id for item in items if item.is_frozen}
    return tuple(
        item.with_(is_frozen=item.id in stopped) for item in target.approval.items
    )


async def _review(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target, staged, has_moved = await _found(ctx, submitted, View.CHOOSE)
    choice, errors = choose.submitted(target.approval, submitted.view.values, staged)
    if errors:
        return rejected_inputs(errors)
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
    frame = ctx.frame(target.approval, target.now_ms)
    now = await _as_of_now(ctx, target)
    view = choose.confirmation(frame, choice, now=now, is_again=is_again)
    user, kept = submitted.view.user, choice.model_dump_json()
    await bind_view(ctx, submitted.view.view_id, user, target, view, staged=kept)
    return {"response_action": "update", "view": view}


async def _decide(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target, choice, has_moved = await _found(ctx, submitted, View.CHOOSE_CONFIRM)
    if has_moved:
        choice = choice.without_moved(target.approval)
        if not choice.size:
            raise UserFacingError(_NOTHING_LEFT)
        return await _confirm(ctx, submitted, target, choice, is_again=True)
    items = [target.approval.items[index] for index in choice.reject]
    said = call_form.submitted_reason(submitted.view.values, items)
    if said.errors:
        return rejected_inputs(said.errors)
    partition = choice.partition(target.approval, said.text)
    outcome = await decide_batch(ctx, target, partition, submitted)
    return _form_reply(outcome, now_ms=target.now_ms)


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
    reviewer, voters = await ctx.deciders_of(*interaction.who, *items)
    reviewer = reviewer.with_(gesture=interaction.gesture)
    click = target.click(interaction.digest, displayed(ctx, target))
    outcome = await ctx.service.decide_card(
        target.approval,
        click,
        partition,
        reviewer,
        voters=voters,
        seen=target.loaded,
    )
    log_outcome(target.approval.id, target.index, outcome.kind, "batch", reviewer)
    return outcome


def batch_reply(outcome: GestureOutcome, *, now_ms: int) -> UserText | None:
    """Return the facts that the card does not show: counted votes, and refusals."""
    if isinstance(outcome, GestureDecided):
        return _decided_reply(outcome)
    if not isinstance(outcome, GestureRefused):
        return outcome_text(outcome, now_ms=now_ms)
    first = min(outcome.refusals)
    refusal = outcome.refusals[first]
    nothing = template("Nothing was recorded, because of call {n}.", n=first + 1)
    # Sentences of `Invalid` may quote arguments, so only a form shows them.
    if isinstance(refusal, Invalid):
        return joined(
            " ",
            [
                nothing,
                template(
                    "The policy may ask for a reason now: please open that call from "
                    "the card."
                ),
            ],
        )
    why = outcome_text(refusal, now_ms=now_ms)
    if isinstance(why, Template):
        return joined(" ", [nothing, why])
    # Plain text, because it names roles of the policy.
    return label(f"{nothing.text} {why.text}")


def _form_reply(outcome: GestureOutcome, *, now_ms: int) -> AckBody:
    """Return the response to a submitted modal: close it, or show the reply in it."""
    may_pass = isinstance(outcome, GestureRefused) and isinstance(
        outcome.refusals[min(outcome.refusals)], Forbidden
    )
    return closing_reply(
        batch_reply(outcome, now_ms=now_ms),
        is_recorded=isinstance(outcome, GestureDecided),
        may_pass=may_pass,
    )


def _decided_reply(outcome: GestureDecided) -> UserText | None:
    sentences: list[Template] = []
    if outcome.waiting:
        sentences += _still_waiting(outcome)
    left_out = len(outcome.left_out)
    if left_out == 1:
        sentences.append(
            template("1 call needs its own review: open it from the card.")
        )
    elif left_out:
        sentences.append(
            template(
                "{n} calls need their own review: open each from the card.",
                n=left_out,
            )
        )
    return joined(" ", sentences) if sentences else None


def _still_waiting(outcome: GestureDecided) -> list[Template]:
    """Describe the recorded votes on calls that need more people."""
    refused = (*outcome.rejected, *outcome.withdrawn)
    decided = len({*outcome.approved, *outcome.edited, *refused})
    waiting = len(outcome.waiting)
    calls = template("{n} calls", n=decided) if decided > 1 else template("1 call")
    is_approval = len(outcome.approved) == decided
    said = template("Your approval of" if is_approval else "Your decision on")
    recorded = joined(" ", [said, calls, template("is recorded.")])
    need = template(
        "One more person is needed" if outcome.needs_one else "More people are needed"
    )
    if waiting == decided:
        return [recorded, joined("", [need, template(".")])]
    return [recorded, joined(" ", [need, template("for {n} of them.", n=waiting)])]
