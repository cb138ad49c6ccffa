"""Decide one call: read all of it, approve, edit, reject, answer or reconcile it.

A click decides if it needs no text. Otherwise it opens a form, whose errors appear
under its inputs.

Full details show all of a call in a modal, page by page. A call too long for its card
can be approved only by a person who opened every page. If they can open it now, they
get the pages instead of a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import LiteralString

from keyturn.bot.blocks import Block
from keyturn.bot.cards.buttons import FOUND
from keyturn.bot.cards.call_rows import needs_full_view
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.ids import PAGE, Action, Input, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners import targets
from keyturn.bot.listeners.router import AckBody, on_action, on_submit
from keyturn.bot.listeners.targets import Target
from keyturn.bot.modals import answer, call_form, details, edit
from keyturn.bot.modals.call_form import required_text
from keyturn.bot.modals.details import page_count
from keyturn.bot.modals.form import InvalidInputs, State, errors_by_block
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import Plain, label
from keyturn.gateway.approvals import changes, decisions
from keyturn.gateway.approvals.events import EventName, approval_event
from keyturn.gateway.approvals.quorum import denial_reason
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.edits import edit_errors
from keyturn.gateway.protocol.records import Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.work import aside

_READ_FIRST = label(
    "Please go through every page first, because the card is shortened. Edit is on "
    "the last page."
)


_OPENERS: dict[Action, tuple[Verb, targets.Form]] = {
    Action.REJECT: (Verb.REJECT, call_form.rejection_form),
    Action.RESPOND: (Verb.RESPOND, call_form.response_form),
    Action.ANSWER: (Verb.RESPOND, answer.view),
}
"""Buttons that open a form, with the permission that it needs."""


_FORMS: Mapping[
    View, tuple[Callable[[Item, State], decisions.Decision], Input | None]
] = {
    View.APPROVE: (
        lambda _, state: decisions.Approve(
            reason=required_text(state, Input.REASON, "Please say why you approve.")
        ),
        Input.REASON,
    ),
    View.REJECT: (
        lambda item, state: decisions.Reject(
            reason=call_form.submitted_reason(state, [item])
        ),
        Input.REASON,
    ),
    View.RESPOND: (
        lambda _, state: decisions.Respond(
            message=required_text(state, Input.MESSAGE, "Please write an answer.")
        ),
        Input.MESSAGE,
    ),
    View.ANSWER: (
        lambda item, state: decisions.Respond(
            answers=answer.submitted(item.questions, state)
        ),
        None,
    ),
    View.RECONCILE: (lambda _, state: call_form.submitted_finding(state), Input.NOTE),
}
"""By form, the decision in it, and the input under which a refusal is explained."""


@on_submit(*_FORMS)
async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    """Decide a call by the inputs of a form."""
    view = View(submitted.callback_id)
    target = await targets.verify_submission(ctx, submitted, view)
    if view is View.APPROVE:
        # The seal proves that the form was opened, but not that all pages were; the
        # Approve button of a short card opens this form, too.
        await require_full_view(ctx, target, submitted.user)
    read, block = _FORMS[view]
    decision = read(target.item, submitted.values)
    outcome = await targets.decide(ctx, target, decision, submitted)
    if isinstance(outcome, decisions.Invalid):
        raise InvalidInputs(
            {block: " ".join(outcome.errors.values())}
            if block
            else answer.errors_by_block(outcome.errors)
        )
    return targets.form_reply(outcome)


@on_action(*_OPENERS)
async def _open(ctx: ListenerContext, clicked: Clicked) -> None:
    action = Action(clicked.action_id)
    verb, form = _OPENERS[action]
    target = await targets.verify_click(ctx, clicked, action)
    await targets.require_permission(ctx, target, verb, clicked.who)
    await targets.open_form(ctx, clicked, target, form)


@on_action(Action.APPROVE)
async def _approve(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await targets.verify_click(ctx, clicked, Action.APPROVE)
    if Verb.APPROVE not in target.item.requires_reason:
        outcome = await targets.decide(ctx, target, decisions.Approve(), clicked)
        if not targets.is_reason_invalid(outcome):
            return targets.outcome_reply(outcome)
    # Needed as well if only the current policy requires a reason.
    await targets.require_permission(ctx, target, Verb.APPROVE, clicked.who)
    await targets.open_form(ctx, clicked, target, call_form.approval_form)
    return None


@on_action(Action.EDIT)
async def _edit(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await targets.verify_click(ctx, clicked, Action.EDIT)
    await targets.require_permission(ctx, target, Verb.EDIT, clicked.who)
    if await has_seen_all(ctx, target, clicked.user):
        await targets.open_form(ctx, clicked, target, edit.view)
    else:
        await open_first_page(ctx, clicked, target, note=_READ_FIRST)


# EDIT_RAISED is the same form after its warning.
@on_submit(View.EDIT, View.EDIT_RAISED)
async def _submit_edit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await targets.verify_submission(
        ctx, submitted, View.EDIT, View.EDIT_RAISED
    )
    item = target.item
    await require_full_view(ctx, target, submitted.user)
    inputs = edit.submitted(item, submitted.values)
    if not inputs.changed and Verb.APPROVE not in item.allow:
        raise UserFacingError(
            "Nothing was recorded: you changed nothing, and approving as it is, "
            "is not allowed."
        )
    # Another warning would repeat without end; the decision itself is evaluated again
    # in any case.
    if submitted.callback_id == View.EDIT and inputs.changed:
        warning = await _warning(ctx, target, submitted, inputs.args)
        if warning is not None:
            return warning
    decision = decisions.Edit(args=inputs.args, reason=inputs.reason)
    outcome = await targets.decide(ctx, target, decision, submitted)
    if isinstance(outcome, decisions.Invalid):
        raise InvalidInputs(errors_by_block(item, outcome.errors))
    return targets.form_reply(outcome)


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
    return await targets.replace_form(
        ctx, submitted, target, partial(edit.view, raised=raised, args=args)
    )


async def check_edit(
    ctx: ListenerContext, target: Target, args: JsonObject
) -> tuple[Mapping[str, str], Item | None]:
    """Return the errors of changed arguments, and the call if they raise it.

    Returns:
        By JSON pointer, why the arguments do not fit the pinned or the current schema;
            and the call with the raised requirement, or None if nothing is raised.
    """
    item = target.item
    policy_now = await ctx.service.preview(target.approval, item.index, args)
    for schema in (item.args_schema, policy_now.args_schema):
        if errors := await aside(partial(edit_errors, schema, item.args, args)):
            return errors, None
    first = changes.first_of(item, policy_now)
    raised = changes.raised_item(first, policy_now)
    if not changes.edit_asks_more(first, raised, policy_now):
        return {}, None
    return {}, item.with_(
        tier=raised.tier,
        reasons=policy_now.reasons,
        requirement=raised.requirement,
        votes=(),
    )


@on_action(Action.SKIP)
async def _skip(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await targets.verify_click(ctx, clicked, Action.SKIP)
    outcome = await targets.decide(ctx, target, decisions.Reject(), clicked)
    return targets.outcome_reply(outcome)


@on_action(*FOUND)
async def _reconcile(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    # The seal is verified for exactly this action: a button for "leave it" cannot be
    # submitted as "run it again".
    action = Action(clicked.action_id)
    target = await targets.verify_click(ctx, clicked, action)
    outcome = await targets.decide(
        ctx, target, decisions.Reconcile(finding=FOUND[action]), clicked
    )
    # The event updates the card, but not a modal.
    reply = outcome_text if clicked.view_id else targets.outcome_reply
    return reply(outcome)


@on_action(Action.RECONCILE_NOTE)
async def _reconcile_with_note(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await targets.verify_click(ctx, clicked, Action.RECONCILE_NOTE)
    await targets.require_reconciler(ctx, target, clicked.who)
    await targets.open_form(ctx, clicked, target, call_form.reconcile_form)


_READ_PAGES: LiteralString = (
    "The card is shortened, so nothing was recorded. Please open Full details and go "
    "through every page first."
)


@on_action(Action.VIEW_ALL)
async def _view_all(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await targets.verify_click(ctx, clicked, Action.VIEW_ALL)
    await open_first_page(ctx, clicked, target)
    return None


@on_action(Action.PAGE_BACK, Action.PAGE_NEXT)
async def _turn(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    sealed = targets.sealed_value(ctx, clicked)
    target = await targets.verify_seal(ctx, sealed, PAGE)
    await targets.verify_place(ctx, clicked, target)
    # The page is the one in the seal, so the last page, which has Approve, can only be
    # requested by a button on the page before.
    page = await page_of(ctx, target, sealed.page)
    await targets.update_view(ctx, clicked, target, page)
    await record_view(ctx, target, clicked, sealed.page)
    return None


@on_submit(View.DETAILS)
async def _approve_last_page(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await targets.verify_submission(ctx, submitted, View.DETAILS)
    details.require_read(target.item, submitted.values)
    if not await _has_opened(ctx, target, submitted.user):
        raise UserFacingError(_READ_PAGES)
    if Verb.APPROVE not in target.item.requires_reason:
        outcome = await targets.decide(ctx, target, decisions.Approve(), submitted)
        # Invalid if only the current policy requires a reason.
        if not targets.is_reason_invalid(outcome):
            return targets.form_reply(outcome)
    return await targets.replace_form(ctx, submitted, target, call_form.approval_form)


async def record_view(
    ctx: ListenerContext, target: Target, clicked: Clicked, number: int
) -> None:
    """Record that a person was shown a page of a call, counted from 1."""
    user, team = clicked.who
    pages = page_count(target.approval, target.item.index)
    viewed = approval_event(
        target.approval, EventName.APPROVAL_VIEWED, target.item
    ).with_(
        actor=f"{team}/{user}",
        request_digest=clicked.digest,
        data={"page": str(number), "pages": str(pages)},
    )
    # Before it counts: every person who may approve after seeing all of it has an
    # entry.
    await ctx.service.store.audit(target.keys).append(viewed)
    await ctx.service.store.read_pages.opened_page(
        target.keys,
        target.approval.id,
        reader=_reader(target, user),
        page=number - 1,
        pages=pages,
    )


async def open_first_page(
    ctx: ListenerContext, clicked: Clicked, target: Target, *, note: Plain | None = None
) -> None:
    """Show all of a call, from its first page; raises `UserFacingError`."""
    view = await page_of(ctx, target, 1, note=note)
    if clicked.view_id and not clicked.is_home:
        await targets.update_view(ctx, clicked, target, view)
    else:
        await targets.open_view(ctx, clicked, target, view)
    # After the page was shown. The other order would count a page that Slack did not
    # show in time.
    await record_view(ctx, target, clicked, 1)


async def page_of(
    ctx: ListenerContext, target: Target, number: int, *, note: Plain | None = None
) -> Block:
    """Return a page of a call, with the current policy decision and freezes."""
    approval, item = target.approval, target.item
    now = item
    if item.is_pending:
        policy_now = await ctx.service.preview(approval, item.index, item.args)
        now = changes.shown_item(item, policy_now)
    frame = ctx.frame(approval, target.now_ms)
    return details.view(frame, item.index, number, now=now, note=note)


async def has_seen_all(ctx: ListenerContext, target: Target, user: str) -> bool:
    """Return whether a person has seen all of a call: on its card, or every page."""
    # Computed from the record and never stored: the same record gives the same result
    # when a form is opened and when it is submitted, on every bot.
    is_long = needs_full_view(target.approval, target.item.index)
    return not is_long or await _has_opened(ctx, target, user)


async def _has_opened(ctx: ListenerContext, target: Target, user: str) -> bool:
    approval, index = target.approval, target.item.index
    return await ctx.service.store.read_pages.has_opened(
        target.keys,
        approval.id,
        reader=_reader(target, user),
        pages=page_count(approval, index),
    )


async def require_full_view(ctx: ListenerContext, target: Target, user: str) -> None:
    """Refuse a person who has not seen all of a call longer than its card.

    Raises:
        UserFacingError: explains the refusal.
    """
    if not await has_seen_all(ctx, target, user):
        raise UserFacingError(_READ_PAGES)


def _reader(target: Target, user: str) -> str:
    # With the hash in the key, an edit makes every reviewer read all pages again.
    return f"{user} {target.item.index} {target.item.action_hash}"
