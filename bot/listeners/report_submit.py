"""Take down that somebody reports a notice."""

from __future__ import annotations

import logging

from bot.blocks import template
from bot.desk import Calm, Desk
from bot.gestures import Submitted
from bot.ids import View
from bot.listeners.doors import Doors, Reply
from bot.listeners.noticed import member, proven_notice
from bot.listeners.report import ALREADY
from bot.listeners.seeing import bound, read_seal
from bot.modals import report

logger = logging.getLogger(__name__)


def register(doors: Doors) -> None:
    """Answer the submitted form."""
    doors.on_submit(View.REPORT, _submit)


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
        raise Calm(ALREADY)
    logger.info("notice.reported notice=%s user=%s", notice.id, person.user)
    return {"response_action": "clear"}
