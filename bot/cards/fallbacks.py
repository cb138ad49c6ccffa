"""Build the plain-text fallback of messages, for notifications and screen readers.

It contains only the bot's sentences, names of tools and numbers: no ids, and no text of
an agent, a customer or a reviewer.
"""

from __future__ import annotations

import re

from keyturn.bot.blocks import Block, Message, actions, button, header, section
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.refs import short_ref, utc, when
from keyturn.bot.cards.states import (
    NOTHING_RAN,
    counted,
    counted_votes,
    state_counts,
    what_ran,
)
from keyturn.bot.ids import CARD_EVENT, Action
from keyturn.bot.text import label, template
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.timing import ends
from keyturn.gateway.protocol.records import Finding, ItemState, Tier, Verb


def plain_card(frame: Frame) -> Message:
    """Return the fallback card: ids only, and each call can only be rejected."""
    approval = frame.approval
    text = template(
        "This request cannot be displayed, so it cannot be approved here. Reject it, "
        "or let it expire: {id}.",
        id=short_ref(approval.id),
    )
    blocks: list[Block] = [
        header(label("A request that cannot be displayed")),
        section(text),
    ]
    # No approval: people must not approve calls that the card does not show.
    rejected = [
        item for item in approval.items if item.is_pending and Verb.REJECT in item.allow
    ]
    if rejected:
        one, *others = rejected
        words = label(f"Reject call {one.index + 1}")
        value = frame.value(one.index, Action.REJECT)
        reject = button(Action.REJECT, words, value=value, style="danger")
        if others:
            # Slack accepts each action once in a block, and at most fifty blocks.
            reject = frame.menu(
                rejected,
                Action.REJECT,
                prefix="Call ",
                placeholder=label("Reject a call…"),
            )
        blocks.append(actions(reject))
    # Without a version, because it mentions no one.
    payload: Block = {"approval": approval.id}
    shown: Block = {"event_type": CARD_EVENT, "event_payload": payload}
    return Message(blocks=tuple(blocks), text=card_fallback(approval), metadata=shown)


_NAMED = 3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

_S = ItemState
_BY_STATE: dict[ItemState, str] = {
    _S.AUTHORIZED: "Approved, not run yet: {tool}.",
    _S.EXECUTING: "Approved and running: {tool}.",
    _S.EXECUTED: "Approved and done: {tool}.",
    _S.FAILED: "Approved, but failed: {tool}.",
    _S.IN_DOUBT: "Did {tool} run? Please check.",
    _S.REJECTED: "Rejected: {tool}. Nothing ran.",
    _S.ANSWERED: "Answered: {tool}. Nothing ran.",
    _S.EXPIRED: "Expired: {tool}. Nothing ran.",
    _S.SUPERSEDED: "Cancelled by a newer message: {tool}. Nothing ran.",
    _S.WITHDRAWN: "Withdrawn: {tool}. Nothing ran.",
    _S.LAPSED: "Approval lapsed: {tool}. Nothing ran.",
}
_FAILED = "Failed: {tool}. Should it run again?"
_BY_EVENT: dict[EventName, str] = {
    EventName.ITEM_EXPIRED: _BY_STATE[_S.EXPIRED],
    EventName.ITEM_SUPERSEDED: _BY_STATE[_S.SUPERSEDED],
    EventName.ITEM_WITHDRAWN: _BY_STATE[_S.WITHDRAWN],
    EventName.ITEM_LAPSED: _BY_STATE[_S.LAPSED],
    EventName.ITEM_EXECUTED: "Done: {tool}.",
    EventName.ITEM_FAILED: "Failed: {tool}.",
    EventName.ITEM_IN_DOUBT: _BY_STATE[_S.IN_DOUBT],
    EventName.ITEM_AUTHORIZED: "Approved: {tool}.",
    EventName.ITEM_REJECTED: _BY_STATE[_S.REJECTED],
    EventName.ITEM_ANSWERED: _BY_STATE[_S.ANSWERED],
    EventName.ITEM_EDITED: "Edited: {tool}.",
    EventName.ITEM_REPEATED: (
        "Not approved: {tool}. The same call was approved elsewhere."
    ),
}
_BY_FINDING: dict[str, str] = {
    Finding.EXECUTED.value: "Checked: {tool} took effect.",
    Finding.RERUN.value: "Checked: {tool} runs again.",
    Finding.SKIP.value: "Checked: {tool} is left as it is.",
}
_OTHER_EVENT = "News about {tool}."


def card_fallback(approval: Approval, *, is_local: bool = False) -> str:
    """Return the sentence for a card, with the request first.

    Args:
        approval: the one on the card.
        is_local: show times in each reader's zone, as Slack does in a message without
            blocks; a notification would show the markup.
    """
    at = f"{utc(approval.expires_at_ms):%Y-%m-%d %H:%M} UTC"
    if is_local:
        at = when(approval.expires_at_ms).text
    if approval.is_question or approval.is_standing:
        is_question = approval.is_question
        return _of_question(approval, at) if is_question else _of_standing(approval, at)
    tools = _tools(approval)
    if approval.state is not ApprovalState.OPEN:
        return _of_closed(approval, tools)
    waiting = [item for item in approval.items if item.is_pending]
    until = f"until {at}."
    if approval.is_batch:
        every, some = len(approval.items), len(waiting)
        calls = counted(every) if some == every else f"{some} of {every} calls"
        first = ", the first" if len(ends(approval)) > 1 else ""
        return f"Approval needed for {calls} ({tools}){first} {until}"
    count = counted_votes(approval.items[0])
    if count.have:
        have = f"{count.have} of {count.need} approvals given"
        if count.is_met:
            have += ", and one more click needed"
        elif count.have >= count.need:
            have = f"{count.have} approvals given and another one needed"
        return f"{have} for {tools}, which waits {until}"
    if approval.items[0].tier is Tier.DENY:
        return f"The policy no longer allows {tools}, which waits {until}"
    needed = "Approval" if count.need == 1 else f"{count.need} approvals"
    return f"{needed} needed for {tools} {until}"


_QUESTIONS: dict[ItemState, str] = {
    _S.ANSWERED: "The agent's question is answered.",
    _S.REJECTED: "The agent's question was skipped.",
    _S.EXPIRED: "Nobody answered the agent's question in time.",
    _S.SUPERSEDED: "A newer message cancelled the agent's question.",
    _S.WITHDRAWN: "The agent's question needs no answer any more.",
}


_STANDING: dict[ItemState, str] = {
    _S.AUTHORIZED: "Similar calls are allowed.",
    _S.LAPSED: "Similar calls are no longer allowed.",
}


def _of_standing(approval: Approval, at: str) -> str:
    item = approval.items[0]
    if not item.is_pending:
        return _STANDING.get(item.state, "Similar calls are not allowed.")
    return f"Allow similar calls? Please decide by {at}."


def _of_question(approval: Approval, at: str) -> str:
    item = approval.items[0]
    if not item.is_pending:
        return _QUESTIONS.get(item.state, _QUESTIONS[_S.WITHDRAWN])
    asks = "a question" if len(item.questions) == 1 else "questions"
    return f"The agent asks {asks}. Please answer by {at}."


def _of_closed(approval: Approval, tools: str) -> str:
    calls = len(approval.items)
    if approval.is_auto_approved:
        if all(item.state is _S.EXECUTED for item in approval.items):
            return f"{counted(calls)} ran without review and succeeded."
        return f"{counted(calls)} without review: {state_counts(approval)}."
    if approval.is_batch:
        return f"{counted(calls)} ({tools}): {state_counts(approval)}."
    return _of_item(approval.items[0]).format(tool=tools)


def event_fallback(event: Event, item: Item) -> str:
    """Return the sentence for a line of history about one call."""
    if item.is_question:
        return _QUESTIONS.get(item.state, "The agent asks a question.")
    tool = tool_name(item.tool)
    if event.name is EventName.ITEM_VOTED:
        count = counted_votes(item)
        return f"{count.have} of {count.need} approvals given for {tool}."
    if event.name is EventName.ITEM_RECONCILED:
        return _BY_FINDING.get(event.reason, _OTHER_EVENT).format(tool=tool)
    if event.name is EventName.ITEM_IN_DOUBT and item.has_failed:
        return _FAILED.format(tool=tool)
    text = _BY_EVENT.get(event.name, _OTHER_EVENT)
    return text.replace(NOTHING_RAN, what_ran(item)).format(tool=tool)


def _of_item(item: Item) -> str:
    if item.has_failed:
        return _FAILED
    return _BY_STATE[item.state].replace(NOTHING_RAN, what_ran(item))


def tool_name(tool: str) -> str:
    """Return a tool's name, unless it could be read as markup."""
    # The top-level `text` is parsed as markup, and appears without the card in
    # notifications and lists.
    return tool if _NAME.fullmatch(tool) else "another tool"


def _tools(approval: Approval) -> str:
    names = dict.fromkeys(tool_name(item.tool) for item in approval.items)
    more = len(names) - _NAMED
    return ", ".join([*names][:_NAMED]) + (f" and {more} more" if more > 0 else "")
