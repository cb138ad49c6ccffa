"""Show what reviewers asked the requester, and the button that asks them.

The card has the newest question with the newest reply to it, while calls wait; Full
details of a call have everything.
"""

from __future__ import annotations

from keyturn.bot.blocks import Block, Message, context, notes, quote, said, section
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.refs import when, with_author
from keyturn.bot.cards.states import card_fallback
from keyturn.bot.ids import Action
from keyturn.bot.text import (
    NAME,
    Ref,
    Template,
    fit,
    joined,
    spoken,
    template,
    untrusted,
    user,
)
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.record import Approval, Inquiry
from keyturn.gateway.approvals.waiting_changes import MAX_QUESTION, has_requester
from keyturn.gateway.protocol.questions import Answered

MOST_TEXT = 800
"""Characters that all of it takes on a card, at most."""

_SHARE = 190
_QUESTION = 2 * MAX_QUESTION
"""Hidden characters make a question longer than it came."""


def requester_ref(approval: Approval) -> Ref | None:
    """Return a mention of the requester; None where there is nobody to ask."""
    if approval.requester is None or not has_requester(approval):
        return None
    try:
        return user(approval.requester.user)
    except ValueError:  # asked by a program, under a name that is no id of Slack's
        return None


def ask_requester(frame: Frame, index: int | None) -> list[Block]:
    """Return the button that asks the requester about a call, or about the card."""
    approval = frame.approval
    items = approval.items if index is None else approval.items[index : index + 1]
    is_waiting = any(item.is_pending for item in items) and not frame.is_late
    if not is_waiting or requester_ref(approval) is None:
        return []
    return [frame.button(index, Action.ASK_REQUESTER)]


def inquiries(frame: Frame) -> list[Block]:
    """Return the newest question and reply while calls wait."""
    approval = frame.approval
    if not approval.inquiries or approval.state is not ApprovalState.OPEN:
        return []
    newest = approval.inquiries[-1]
    state = template("💬 The requester has not replied yet.")
    if newest.is_reply:
        state = template("💬 The requester replied.")
    if approval.is_batch:
        # A batch has no room for their words.
        return [context(joined(" ", [state, template("See Full details.")]))]
    questions = [one for one in approval.inquiries if not one.is_reply]
    shown = [*questions[-1:], *([newest] if newest.is_reply else [])]
    small = [] if newest.is_reply else [state]
    if more := len(approval.inquiries) - len(shown):
        small.append(template("{n} more of these are in Full details.", n=more))
    asked = template("💬 *Asked the requester*")
    replied = template("💬 *The requester replied*")
    blocks = [
        block
        for one in shown
        for block in in_words(replied if one.is_reply else asked, one, _SHARE)
    ]
    return [*blocks, *notes(small)]


def in_words(head: Template, one: Answered | Inquiry, most: int) -> list[Block]:
    """Return what a person wrote, below their name and the time."""
    # The name in plain text: a mention would notify them when the card is posted again.
    name = untrusted(f"By {fit(one.by.name or one.by.user, NAME)}")
    said = template("{head}, {at}", head=head, at=when(one.at_ms))
    return [context(said, name), quote(one.text, most)]


def inquiry_parts(approval: Approval, index: int) -> list[tuple[str, list[str]]]:
    """Return all that was asked and replied about a call: titles and whole texts."""
    return [
        (
            "The requester replied" if one.is_reply else "Asked the requester",
            [with_author(one)],
        )
        for one in approval.inquiries
        if one.is_about(index)
    ]


def asked_note(event: Event, approval: Approval, who: Ref) -> Message:
    """Return the reply under the card that asks the requester, whom it mentions."""
    lead = template("{who}, a reviewer has a question before deciding:", who=who)
    if nth := int(event.data.get("call", 0)):
        lead = template(
            "{who}, a reviewer has a question about call {n}:", who=who, n=nth
        )
    names = {f"{one.by.team}/{one.by.user}": one.by.name for one in approval.inquiries}
    name = names.get(event.actor) or event.actor
    how = template(
        "Reply in this thread and mention me. Reviewers see your reply on the card; "
        "it decides nothing."
    )
    by = untrusted(f"Asked by {fit(name, NAME)}")
    return said(lead, quote(event.reason, _QUESTION), context(by, how))


def replied_note(approval: Approval, askers: list[Ref]) -> Message:
    """Return the reply that tells those who asked that the requester has replied."""
    mentions = [template("{who}", who=one) for one in askers]
    sentence = template("💬 The requester replied. Please decide.")
    text = f"{spoken(sentence)} {card_fallback(approval)}"
    return Message((section(joined(" ", [*mentions, sentence])),), text)
