"""Edit the arguments of one call in a modal, with errors beside the inputs."""

from __future__ import annotations

from functools import partial

from keyturn.bot.ids import Action, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError
from keyturn.bot.listeners.full_view import (
    has_seen_all,
    open_first_page,
    require_full_view,
)
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import (
    Target,
    decide,
    require_permission,
    verify_click,
)
from keyturn.bot.listeners.views import (
    form_reply,
    open_form,
    rejected_inputs,
    replace_form,
    verify_submission,
)
from keyturn.bot.modals import edit
from keyturn.bot.modals.form import errors_by_block
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text_types import label, template
from keyturn.gateway.approvals.decisions import Edit, Invalid
from keyturn.gateway.approvals.permission import denial_reason
from keyturn.gateway.approvals.raising import edit_asks_more, first_of, raised_item
from keyturn.gateway.protocol.edits import edit_errors
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.verbs import Verb
from keyturn.gateway.protocol.work import aside

_READ_FIRST = label(
    "This call is longer than its card, so please go through every page first. "
    "Edit is on the last one."
)


def register(router: Router) -> None:
    """Answer the button Edit, its form, and the same form after its warning."""
    router.on_action(Action.EDIT, _edit)
    router.on_submit(View.EDIT, _submit)
    router.on_submit(View.EDIT_RAISED, _submit)


async def _edit(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.EDIT)
    await require_permission(ctx, target, Verb.EDIT, clicked.who)
    if await has_seen_all(ctx, target, clicked.action.user):
        await open_form(ctx, clicked, target, edit.view)
    else:
        await open_first_page(ctx, clicked, target, note=_READ_FIRST)


async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.EDIT, View.EDIT_RAISED)
    item = target.item
    await require_full_view(ctx, target, submitted.view.user)
    inputs = edit.submitted(item, submitted.view.values)
    if inputs.errors:
        return rejected_inputs(inputs.errors)
    if not inputs.changed and Verb.APPROVE not in item.allow:
        raise UserFacingError(
            template(
                "Nothing was changed, and this call may not be approved as it is. "
                "Nothing was recorded."
            )
        )
    # EDIT_RAISED is the same form after its warning. Asking again would show the
    # warning without end; the decision itself is evaluated again in any case.
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
    """Show the form once more, with what the change would bring, if it asks for more.

    Arguments that do not fit a schema, and a change that this person may not make, are
    left to the decision, which says so.
    """
    item = target.item
    policy_now = await ctx.service.preview(target.approval, item.index, args)
    # The pinned schema and the one of now, as the decision does.
    schemas = (item.args_schema, policy_now.args_schema if policy_now else None)
    checks = [partial(edit_errors, schema, item.args, args) for schema in schemas]
    if policy_now is None or any([await aside(check) for check in checks]):
        return None
    first = first_of(item, policy_now)
    raised = raised_item(first, policy_now)
    if not edit_asks_more(first, raised, policy_now):
        return None
    reviewer = await ctx.reviewer_of(*submitted.who, item)
    if denial_reason(target.approval, item, reviewer, Verb.EDIT):
        return None  # the decision says why it is refused
    warned = edit.Raised(
        tier=raised.tier,
        args=args,
        reasons=policy_now.reasons,
        requirement=raised.requirement,
    )
    return await replace_form(ctx, submitted, target, partial(edit.view, raised=warned))
