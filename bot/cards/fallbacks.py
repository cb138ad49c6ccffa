"""Build the plain-text fallback of messages, for notifications and screen readers.

It contains only the bot's sentences, names of tools and numbers: no ids, and no text of
an agent, a customer or a reviewer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import LiteralString

from keyturn.bot.blocks import Block, Message, actions, section
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.refs import join_list, short_ref
from keyturn.bot.cards.states import batch_state, expires_each, status_sentence
from keyturn.bot.ids import CARD_EVENT, Action
from keyturn.bot.text import Ref, Template, code, joined, label, spoken, template
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import Verb


def plain_card(frame: Frame) -> Message:
    """Return the fallback card: ids only, and each call can only be rejected."""
    approval = frame.approval
    said = [
        template("Calls that cannot be displayed: {id}.", id=short_ref(approval.id))
    ]
    # No approval: people must not approve calls that the card does not show.
    rejectable = [
        item for item in approval.items if item.is_pending and Verb.REJECT in item.allow
    ]
    blocks: list[Block] = []
    if rejectable:
        said.append(template("Please reject them, or let them expire."))
        # One menu: Slack accepts each action once in a block.
        words = label("Reject a call…")
        menu = frame.menu(rejectable, Action.REJECT, prefix="Call ", placeholder=words)
        blocks.append(actions(menu))
    # Without a version, because it mentions no one.
    payload: Block = {"approval": approval.id}
    shown: Block = {"event_type": CARD_EVENT, "event_payload": payload}
    text = card_fallback(approval)
    return Message((section(joined(" ", said)), *blocks), text, metadata=shown)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def card_sentence(approval: Approval) -> Template:
    """Return the state of a card, whoever reads it and whenever."""
    said = status_sentence(approval, approval.items[0])
    if approval.is_batch:
        words = template("{words}.", words=batch_state(approval)[1])
        said = joined(" ", [words, *expires_each(approval)])
    if approval.is_auto_approved or approval.is_question:
        return said
    return template("{said} {tools}", said=said, tools=tools_named(approval.items))


def card_fallback(approval: Approval) -> str:
    """Return the sentence for a card."""
    return spoken(card_sentence(approval))


def tools_named(items: Sequence[Item]) -> Template:
    """Return the names of the tools of calls, as a sentence."""
    names = [*dict.fromkeys(item.tool for item in items)]
    each = [template("{tool}", tool=_tool(name)) for name in names]
    noun: LiteralString = "Tools: " if len(names) > 1 else "Tool: "
    return template(noun + "{each}.", each=join_list(each))


def _tool(name: str) -> Ref:
    """Return a tool's name, unless it could be read as markup."""
    return code(name if _NAME.fullmatch(name) else "another-tool")
