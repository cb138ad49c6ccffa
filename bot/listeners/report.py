"""Open the form in which a notice is reported."""

from __future__ import annotations

import logging

from twokey.bot.blocks import template
from twokey.bot.gestures import Clicked, Submitted
from twokey.bot.ids import Action, View
from twokey.bot.listener_context import ListenerContext, Said, UserFacingError
from twokey.bot.listeners.router import Reply, Router
from twokey.bot.listeners.verify_click import bound, read_seal
from twokey.bot.listeners.verify_notice import member, proven_notice, seen_notice
from twokey.bot.listeners.views import opened_view
from twokey.bot.modals import report
from twokey.gateway.store.cards import ViewBinding

logger = logging.getLogger(__name__)

_ALREADY = template("You reported this already; nothing more was recorded.")


def register(router: Router) -> None:
    """Answer the button Report, and its form."""
    router.on_action(Action.REPORT, _report)
    router.on_submit(View.REPORT, _submit)


async def _report(ctx: ListenerContext, clicked: Clicked) -> Said | None:
    notice, _ = await seen_notice(ctx, clicked, Action.REPORT)
    person = await member(ctx, *clicked.who)
    if any(one.by.is_same(person) for one in notice.remarks):
        raise UserFacingError(_ALREADY)
    view = report.view(notice, key=ctx.config.seal_key, team=ctx.team)
    view_id = await opened_view(ctx, clicked, view)
    binding = ViewBinding(
        user=person.user,
        approval=notice.id,
        index=0,
        version=0,
        action_hash="",
        purpose=View.REPORT,
    )
    await ctx.service.store.cards.bind_view(ctx.keys, view_id, binding)
    return None


async def _submit(ctx: ListenerContext, submitted: Submitted) -> Reply:
    view = submitted.view
    sealed = read_seal(view.private_metadata)
    binding = await bound(ctx, view.view_id)
    opened_for = (binding.user, binding.approval, binding.purpose) if binding else None
    if opened_for != (view.user, sealed.approval, View.REPORT):
        logger.warning("view.refused why=not_bound")
        raise UserFacingError(
            template("This window is not known any more. Please open it again.")
        )
    notice = await proven_notice(ctx, sealed, View.REPORT)
    person = await member(ctx, *submitted.who)
    text = report.submitted(view.values)
    if not await ctx.service.notices.report(notice, person, text):
        raise UserFacingError(_ALREADY)
    logger.info("notice.reported notice=%s user=%s", notice.id, person.user)
    return {"response_action": "clear"}
