"""Report a call that ran without review: open the form, and save the report."""

from __future__ import annotations

import logging
from dataclasses import replace

from keyturn.bot.ids import Action, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import Who, verify_click
from keyturn.bot.listeners.views import open_form, verify_submission
from keyturn.bot.modals import call_form
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text_types import template
from keyturn.gateway.approvals.decisions import Reviewer

logger = logging.getLogger(__name__)

_ALREADY = template("You reported this already; nothing more was recorded.")


def register(router: Router) -> None:
    """Answer the button Report, and its form."""
    router.on_action(Action.REPORT, _report)
    router.on_submit(View.REPORT, _submit)


async def _report(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.REPORT)
    reporter = await _member(ctx, clicked.who)
    if any(one.by.is_same(reporter.person) for one in target.approval.remarks):
        raise UserFacingError(_ALREADY)
    # The form is sealed for the first call; the report is about all of them.
    await open_form(ctx, clicked, replace(target, index=0), call_form.report_form)


async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.REPORT)
    reporter = await _member(ctx, submitted.who)
    reporter = reporter.with_(gesture=submitted.gesture)
    text = call_form.submitted_report(submitted.view.values)
    # The check before the form was opened spares typing; this one counts, since two
    # forms of one person may be open.
    if not await ctx.service.report(target.approval.id, reporter, text):
        raise UserFacingError(_ALREADY)
    logger.info(
        "approval.reported approval=%s user=%s", target.approval.id, reporter.user
    )
    return {"response_action": "clear"}


async def _member(ctx: ListenerContext, who: Who) -> Reviewer:
    """Return a member of the workspace, who may report; raises `UserFacingError`."""
    refusal = template("Only members of this workspace can report this.")
    return await ctx.require_member(who, refusal)
