"""Build the plain-text fallback of messages, for notifications and screen readers.

It contains only the bot's sentences, the policy's acts, names of tools and numbers: no
ids, and no text of an agent, a customer or a reviewer.
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
from keyturn.bot.text import Template, code, joined, label, spoken, template
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


_UNNAMED = template("another tool")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def card_sentence(approval: Approval) -> Template:
    """Return the state of a card and its tools."""
    said = _state_of(approval)
    if _has_own_subject(approval):
        return said
    names = _names(approval.items)
    noun: LiteralString = "Tools: " if len(names) > 1 else "Tool: "
    return template("{said} " + noun + "{each}.", said=said, each=join_list(names))


def card_fallback(approval: Approval) -> str:
    """Return the sentence for a card."""
    said = _state_of(approval)
    return spoken(said) if _has_own_subject(approval) else about(approval.items, said)


def about(items: Sequence[Item], sentence: Template) -> str:
    """Return a sentence about calls as it is read aloud: the acts come first."""
    named = join_list(_names(items, has_acts=True)).text.replace("`", "")
    first = named[0].upper() if items[0].act else named[0]
    return f"{first}{named[1:]}: {spoken(sentence)}"


def _has_own_subject(approval: Approval) -> bool:
    return approval.is_auto_approved or approval.is_question


def _state_of(approval: Approval) -> Template:
    said = status_sentence(approval, approval.items[0])
    if approval.is_batch:
        words = template("{words}.", words=batch_state(approval)[1])
        return joined(" ", [words, *expires_each(approval)])
    return said


def _names(items: Sequence[Item], *, has_acts: bool = False) -> list[Template]:
    """Return the tools or acts of calls, without names that could be read as markup."""
    each = {item.tool: item for item in items}.values()
    return [_name(one, one.act if has_acts else "") for one in each]


def _name(item: Item, act: str) -> Template:
    if item.is_standing:
        return template("similar calls")
    name = act or item.tool
    return template("{name}", name=code(name)) if _NAME.fullmatch(name) else _UNNAMED
