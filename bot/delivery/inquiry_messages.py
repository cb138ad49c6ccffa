"""Convert questions to the requester, and their replies, to messages in threads."""

from __future__ import annotations

from collections.abc import Mapping

from twokey.bot.cards.inquiries import asked_note, replied_note, requester_ref
from twokey.bot.cards.refs import who
from twokey.bot.delivery.queue_entry import QueuedMessage, Urgency
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.inquiring import REPLY_TS
from twokey.gateway.approvals.inquiry import answered_by
from twokey.gateway.approvals.lifecycle import ApprovalState
from twokey.gateway.approvals.record import Approval

INQUIRY_EVENTS = frozenset({EventName.APPROVAL_ASKED, EventName.APPROVAL_REPLIED})


def inquiry_messages(
    event: Event,
    approval: Approval,
    place: tuple[str, str] | None,
    copies: Mapping[str, tuple[str, str]],
) -> list[QueuedMessage]:
    """Return the replies about a question or about the first reply to it.

    Who asked is told under their copy of the card, or in the thread without one.
    """
    requester, urgency = requester_ref(approval), Urgency.NEEDS_PEOPLE
    # Decided while this waited to be posted: nobody is asked, or waits, any more.
    is_open = approval.state is ApprovalState.OPEN
    if place is None or requester is None or not is_open:
        return []
    if event.name is EventName.APPROVAL_ASKED:
        note = asked_note(event, approval, requester)
        return [QueuedMessage(note, event.seq, *place, urgency)]
    questions = answered_by(approval.inquiries, event.data.get(REPLY_TS, ""))
    askers = {one.by.user: who(one.by) for one in questions}
    if not askers:
        return []  # more words to what was answered: the card shows them
    in_thread = [ref for user, ref in askers.items() if user not in copies]
    # First, since only the last message carries the event: it is acknowledged after
    # all of them.
    told = [
        QueuedMessage(replied_note(approval, [ref]), "", *copies[user], urgency)
        for user, ref in askers.items()
        if user in copies
    ]
    note = replied_note(approval, in_thread)
    return [*told, QueuedMessage(note, event.seq, *place, urgency)]
