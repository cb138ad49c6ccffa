"""Open the form in which a notice is reported."""

from __future__ import annotations

import logging

from twokey.bot.blocks import template
from twokey.bot.desk import Calm, Desk, Said
from twokey.bot.gestures import Clicked, Submitted
from twokey.bot.ids import Action, View
from twokey.bot.listeners.doors import Doors, Reply
from twokey.bot.listeners.noticed import member, proven_notice, seen_notice
from twokey.bot.listeners.verify_click import bound, read_seal
from twokey.bot.listeners.views import opened_view
from twokey.bot.modals import report
from twokey.gateway.store.cards import ViewBinding

logger = logging.getLogger(__name__)

_ALREADY = template("You reported this already; nothing more was recorded.")


def register(doors: Doors) -> None:
    """Answer the button Report, and its form."""
    doors.on_action(Action.REPORT, _report)
    doors.on_submit(View.REPORT, _submit)


async def _report(desk: Desk, clicked: Clicked) -> Said | None:
    notice, _ = await seen_notice(desk, clicked, Action.REPORT)
    person = await member(desk, *clicked.who)
    if any(one.by.is_same(person) for one in notice.remarks):
        raise Calm(_ALREADY)
    view = report.view(notice, key=desk.config.seal_key, team=desk.team)
    view_id = await opened_view(desk, clicked, view)
    binding = ViewBinding(
        user=person.user,
        approval=notice.id,
        index=0,
        version=0,
        action_hash="",
        purpose=View.REPORT,
    )
    await desk.service.store.cards.bind_view(desk.keys, view_id, binding)
    return None


async def _submit(desk: Desk, submitted: Submitted) -> Reply:
    view = submitted.view
    sealed = read_seal(view.private_metadata)
    binding = await bound(desk, view.view_id)
    opened_for = (binding.user, binding.approval, binding.purpose) if binding else None
    if opened_for != (view.user, sealed.approval, View.REPORT):
        logger.warning("view.refused why=not_bound")
        raise Calm(template("This window is not known any more. Please open it again."))
    notice = await proven_notice(desk, sealed, View.REPORT)
    person = await member(desk, *submitted.who)
    text = report.submitted(view.values)
    if not await desk.service.notices.report(notice, person, text):
        raise Calm(_ALREADY)
    logger.info("notice.reported notice=%s user=%s", notice.id, person.user)
    return {"response_action": "clear"}
