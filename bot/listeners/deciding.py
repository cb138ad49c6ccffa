"""Decide one call: approve, edit, reject, answer or reconcile it.

A click decides if it needs no text. Otherwise it opens a form, whose errors appear
under its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.full_view import (
    has_seen_all,
    open_first_page,
    require_full_view,
)
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.targets import (
    Form,
    Target,
    decide,
    form_reply,
    is_reason_invalid,
    open_form,
    outcome_reply,
    rejected_inputs,
    replace_form,
    require_permission,
    require_reconciler,
    verify_click,
    verify_submission,
)
from keyturn.bot.modals import answer, call_form, edit
from keyturn.bot.modals.call_form import SubmittedText
from keyturn.bot.modals.form import State, errors_by_block
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import label, template
from keyturn.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Invalid,
    Reconcile,
    Reject,
    Respond,
)
from keyturn.gateway.approvals.permission import denial_reason
from keyturn.gateway.approvals.raising import edit_asks_more, first_of, raised_item
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.edits import edit_errors
from keyturn.gateway.protocol.records import Finding, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.work import aside

_FINDINGS = {
    Action.RECONCILE_EXECUTED: Finding.EXECUTED,
    Action.RECONCILE_RERUN: Finding.RERUN,
    Action.RECONCILE_SKIP: Finding.SKIP,
}
_READ_FIRST = label(
    "Please go through every page first, because the card is shortened. Edit is on "
    "the last page."
)


def register(router: Router) -> None:
    """Answer the buttons that decide a call, and their forms."""
    router.on_action(Action.APPROVE, _approve)
    for form in _TEXT_FORMS:
        router.on_submit(form.view, form.submit)
    for action, verb, make in _OPENERS:
        router.on_action(action, partial(_open, action=action, verb=verb, form=make))
    router.on_action(Action.EDIT, _edit)
    # EDIT_RAISED is the same form after its warning.
    router.on_submit(View.EDIT, _submit_edit)
    router.on_submit(View.EDIT_RAISED, _submit_edit)
    router.on_action(Action.SKIP, _skip)
    router.on_submit(View.ANSWER, _submit_answers)
    for action in _FINDINGS:
        router.on_action(action, _reconcile)
    router.on_action(Action.RECONCILE_NOTE, _reconcile_with_note)
    router.on_submit(View.RECONCILE, _submit_finding)


_OPENERS: tuple[tuple[Action, Verb, Form], ...] = (
    (Action.REJECT, Verb.REJECT, call_form.rejection_form),
    (Action.RESPOND, Verb.RESPOND, call_form.response_form),
    (Action.ANSWER, Verb.RESPOND, answer.view),
)
"""Buttons that open a form, with the permission that it needs."""


@dataclass(frozen=True, slots=True)
class _TextForm:
    """A form whose text decides a call.

    Attributes:
        view: the form's purpose.
        read: reads the submitted inputs.
        decision: makes the decision from the text.
        block: the input under which an unacceptable text is explained.
    """

    view: View
    read: Callable[[Item, State], SubmittedText]
    decision: Callable[[str], Decision]
    block: Input

    async def submit(self, ctx: ListenerContext, submitted: Submitted) -> AckBody:
        """Decide by the text of the form."""
        target = await verify_submission(ctx, submitted, self.view)
        if self.view is View.APPROVE:
            # The seal proves that the form was opened, but not that all pages were; the
            # Approve button of a short card opens this form, too.
            await require_full_view(ctx, target, submitted.view.user)
        inputs = self.read(target.item, submitted.view.values)
        if inputs.errors:
            return rejected_inputs(inputs.errors)
        decision = self.decision(inputs.text)
        return await _decide(ctx, target, submitted, decision, block=self.block)


_TEXT_FORMS = (
    _TextForm(
        View.APPROVE,
        lambda _, state: call_form.submitted_approval(state),
        decision=lambda text: Approve(reason=text),
        block=Input.REASON,
    ),
    _TextForm(
        View.REJECT,
        call_form.submitted_rejection,
        decision=lambda text: Reject(reason=text),
        block=Input.REASON,
    ),
    _TextForm(
        View.RESPOND,
        lambda _, state: call_form.submitted_response(state),
        decision=lambda text: Respond(message=text),
        block=Input.MESSAGE,
    ),
)


async def _open(
    ctx: ListenerContext, clicked: Clicked, *, action: Action, verb: Verb, form: Form
) -> None:
    target = await verify_click(ctx, clicked, action)
    await require_permission(ctx, target, verb, clicked.who)
    await open_form(ctx, clicked, target, form)


async def _decide(
    ctx: ListenerContext,
    target: Target,
    submitted: Submitted,
    decision: Decision,
    *,
    block: Input,
) -> AckBody:
    """Submit the decision of a form; show its errors under ``block``."""
    outcome = await decide(ctx, target, decision, submitted)
    if isinstance(outcome, Invalid):
        return rejected_inputs({block: " ".join(outcome.errors.values())})
    return form_reply(outcome, now_ms=target.now_ms)


async def _approve(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.APPROVE)
    if Verb.APPROVE not in target.item.requires_reason:
        outcome = await decide(ctx, target, Approve(), clicked)
        if not is_reason_invalid(outcome):
            return outcome_reply(outcome, now_ms=target.now_ms)
    # Needed as well if only the current policy requires a reason.
    await require_permission(ctx, target, Verb.APPROVE, clicked.who)
    await open_form(ctx, clicked, target, call_form.approval_form)
    return None


async def _edit(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.EDIT)
    await require_permission(ctx, target, Verb.EDIT, clicked.who)
    if await has_seen_all(ctx, target, clicked.action.user):
        await open_form(ctx, clicked, target, edit.view)
    else:
        await open_first_page(ctx, clicked, target, note=_READ_FIRST)


async def _submit_edit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.EDIT, View.EDIT_RAISED)
    item = target.item
    await require_full_view(ctx, target, submitted.view.user)
    inputs = edit.submitted(item, submitted.view.values)
    if inputs.errors:
        return rejected_inputs(inputs.errors)
    if not inputs.changed and Verb.APPROVE not in item.allow:
        raise UserFacingError(
            template(
                "Nothing was recorded: you changed nothing, and approving as it is, "
                "is not allowed."
            )
        )
    # Another warning would repeat without end; the decision itself is evaluated again
    # in any case.
    if submitted.view.callback_id == View.EDIT and inputs.changed:
        warning = await _warning(ctx, target, submitted, inputs.args)
        if warning is not None:
            return warning
    decision = Edit(args=inputs.args, reason=inputs.reason)
    outcome = await decide(ctx, target, decision, submitted)
    if isinstance(outcome, Invalid):
        return rejected_inputs(errors_by_block(item, outcome.errors))
    return form_reply(outcome, now_ms=target.now_ms)


async def _warning(
    ctx: ListenerContext, target: Target, submitted: Submitted, args: JsonObject
) -> AckBody | None:
    """Show the form once more with a warning if the change needs more approvals.

    There is no warning for arguments that do not fit a schema, or for a change that
    this person may not make: the decision refuses both.
    """
    errors, raised = await check_edit(ctx, target, args)
    if errors or raised is None:
        return None
    reviewer = await ctx.reviewer_of(*submitted.who, target.item)
    if denial_reason(target.approval, target.item, reviewer, Verb.EDIT):
        return None
    return await replace_form(ctx, submitted, target, partial(edit.view, raised=raised))


async def check_edit(
    ctx: ListenerContext, target: Target, args: JsonObject
) -> tuple[Mapping[str, str], edit.Raised | None]:
    """Return the errors of changed arguments, and the raised requirement.

    Returns:
        By JSON pointer, why the arguments do not fit the pinned or the current schema;
            and the raised requirement, or None if the change raises nothing.
    """
    item = target.item
    policy_now = await ctx.service.preview(target.approval, item.index, args)
    for schema in (item.args_schema, policy_now.args_schema if policy_now else None):
        if errors := await aside(partial(edit_errors, schema, item.args, args)):
            return errors, None
    if policy_now is None:
        return {}, None
    first = first_of(item, policy_now)
    raised = raised_item(first, policy_now)
    if not edit_asks_more(first, raised, policy_now):
        return {}, None
    return {}, edit.Raised(
        tier=raised.tier,
        args=args,
        reasons=policy_now.reasons,
        requirement=raised.requirement,
    )


async def _skip(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.SKIP)
    outcome = await decide(ctx, target, Reject(), clicked)
    return outcome_reply(outcome, now_ms=target.now_ms)


async def _submit_answers(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.ANSWER)
    answers, errors = answer.submitted(target.item.questions, submitted.view.values)
    if errors:
        return rejected_inputs(errors)
    outcome = await decide(ctx, target, Respond(answers=answers), submitted)
    if isinstance(outcome, Invalid):
        return rejected_inputs(answer.errors_by_block(outcome.errors))
    return form_reply(outcome, now_ms=target.now_ms)


async def _reconcile(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    # The seal is verified for exactly this action: a button for "leave it" cannot be
    # submitted as "run it again".
    action = Action(clicked.action.action_id)
    target = await verify_click(ctx, clicked, action)
    outcome = await decide(ctx, target, Reconcile(finding=_FINDINGS[action]), clicked)
    if clicked.action.view_id:
        # The event updates the card, but not a modal.
        return outcome_text(outcome, now_ms=target.now_ms)
    return outcome_reply(outcome, now_ms=target.now_ms)


async def _reconcile_with_note(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.RECONCILE_NOTE)
    await require_reconciler(ctx, target, clicked.who)
    await open_form(ctx, clicked, target, call_form.reconcile_form)


async def _submit_finding(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.RECONCILE)
    decision = call_form.submitted_finding(submitted.view.values)
    if isinstance(decision, dict):
        return rejected_inputs(decision)
    return await _decide(ctx, target, submitted, decision, block=Input.NOTE)
