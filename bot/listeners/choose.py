"""Decide each waiting call of a batch in one form."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from keyturn.bot.blocks import ensure_valid_view
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError
from keyturn.bot.listeners.batch_decision import batch_form_reply, decide_batch
from keyturn.bot.listeners.full_view import require_full_view
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import (
    Target,
    find_binding,
    of_member,
    require_permission,
    verify_click,
)
from keyturn.bot.listeners.views import (
    NOT_BOUND,
    bind_view,
    find_moved,
    open_view,
    rejected_inputs,
    verify_submission,
)
from keyturn.bot.modals import choose, edit, reject
from keyturn.bot.modals.choose import Choice, StagedEdit, opened
from keyturn.bot.modals.form import errors_by_block
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text_types import template
from keyturn.bot.web import SlackError
from keyturn.gateway.approvals.raising import edit_asks_more, first_of, raised_item
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.edits import edit_errors
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.verbs import Verb
from keyturn.gateway.protocol.work import aside

logger = logging.getLogger(__name__)

_LEFT_CARD = (
    "This call is not on that card any more: it has a card of its own. Your edit was "
    "not kept; please edit it there."
)
_NOTHING_LEFT = template(
    "The calls that you chose have changed or were decided since you opened this form, "
    "so nothing was recorded. Please look at the card as it is now."
)


def register(router: Router) -> None:
    """Answer the button Choose, its form, the edits in it, and the last page."""
    router.on_action(Action.CHOOSE, _open)
    router.on_action(Action.CHOOSE_EDIT, _edit)
    router.on_submit(View.CHOOSE_EDIT, _keep_edit)
    router.on_submit(View.CHOOSE, _review)
    router.on_submit(View.CHOOSE_CONFIRM, _decide)


async def _open(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.CHOOSE)
    # The seal holds which calls wait, so there is one; they need the same people.
    first = next(item for item in target.approval.items if item.is_pending)
    verb = Verb.APPROVE if Verb.APPROVE in first.allow else Verb.REJECT
    one = await of_member(ctx, replace(target, index=first.index))
    await require_permission(ctx, one, verb, clicked.who)
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
        UserFacingError: the change needs more, so it takes a decision of its own.
    """
    item = target.item
    policy_now = await ctx.service.preview(target.approval, item.index, args)
    for schema in (item.args_schema, policy_now.args_schema if policy_now else None):
        if errors := await aside(partial(edit_errors, schema, item.args, args)):
            return errors_by_block(item, errors)
    if policy_now is None:
        return {}
    first = first_of(item, policy_now)
    if edit_asks_more(first, raised_item(first, policy_now), policy_now):
        raise UserFacingError(
            template(
                "With this change the call needs more than before, so it takes a "
                "decision of its own. Nothing was kept; open the call from the card "
                "and edit it there."
            )
        )
    return {}


async def _stage(
    ctx: ListenerContext, submitted: Submitted, target: Target, staged: StagedEdit
) -> None:
    """Keep an edit with the form below, and show it there."""
    pushed = await find_binding(ctx, submitted.view.view_id)
    parent = pushed.parent if pushed else ""
    choice, shown = await _shown_in(ctx, parent, target)
    # A call that somebody decided meanwhile is not part of the choice any more.
    waiting = {item.index for item in shown.approval.items if item.is_pending}
    edits = {i: one for i, one in choice.edits.items() if i in waiting}
    edits |= {shown.item.index: staged}
    choice = choice.with_(edits=edits)
    whole = replace(shown, index=None, purpose=View.CHOOSE)
    now = await _as_of_now(ctx, shown)
    view = choose.view(ctx.frame(shown.approval, target.now_ms), choice, now=now)
    ensure_valid_view(view)
    kept = choice.model_dump_json()
    # Kept before it is shown: what the form shows is then always what is decided.
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
    """Return what a form holds, and a call by its place among all of the card.

    On a collected card it is one of several approvals.

    Raises:
        UserFacingError: the form is not known, or the call left the card, to be
            decided on its own.
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
    """Return the calls of a form, with which of them a freeze stops now."""
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
    """Return the answer that shows the last page, bound to the batch as it is now."""
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
    said = reject.submitted_reason(
        submitted.view.values, needed=reject.needs_reason(items)
    )
    if said.errors:
        return rejected_inputs(said.errors)
    partition = choice.partition(target.approval, said.text)
    outcome = await decide_batch(ctx, target, partition, submitted)
    return batch_form_reply(outcome, now_ms=target.now_ms)


async def _found(
    ctx: ListenerContext, submitted: Submitted, purpose: View
) -> tuple[Target, Choice, bool]:
    """Return the batch as it stands, what was chosen of it, and whether it moved since.

    A batch that moved is no reason to drop what somebody chose: nothing is decided
    over it, but the next page is shown with the rest of their choice.

    Raises:
        UserFacingError: the form is not theirs, or nothing of the batch waits.
    """
    # The choice is of the binding that was verified: it is not read a second time.
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
