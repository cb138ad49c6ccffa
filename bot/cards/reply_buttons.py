"""Offer buttons that use a person's thread reply as reason, edit or answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from twokey.bot.blocks import Message, actions, box, context, rich_text, section
from twokey.bot.cards.frame import Frame
from twokey.bot.ids import Action
from twokey.bot.objects import Block
from twokey.bot.text import excerpt, fit
from twokey.bot.text_types import label, template, untrusted
from twokey.gateway.approvals.record import Item
from twokey.gateway.protocol.verbs import Verb

MAX_ROWS = 5
"""How many waiting calls are offered at once."""

BY_VERB: dict[Verb, Action] = {
    Verb.RESPOND: Action.RESPOND_WORDS,
    Verb.EDIT: Action.EDIT_WORDS,
    Verb.REJECT: Action.REJECT_WORDS,
}
"""What words can be passed on as, in the order in which it is offered."""

_SHOWN = 600
_TOOL = 80
_NAMES = {
    Verb.RESPOND: label("Respond"),
    Verb.EDIT: label("Edit"),
    Verb.REJECT: label("Reject"),
}
_SPOKEN = {
    Verb.RESPOND: "Answer the agent with your words instead of running call {n}",
    Verb.EDIT: "Edit call {n}, with your words as the reason",
    Verb.REJECT: "Reject call {n}, with your words as the reason",
}


def offer(
    frame: Frame, allowed: Mapping[int, Collection[Verb]], words: str, *, ts: str
) -> Message:
    """Return the private message that asks what somebody's words are to become.

    Args:
        frame: of the card.
        allowed: for each call, by its index, what this person may do with it.
        words: what they wrote; it is shown, and stays on the server.
        ts: of the message in which they wrote it.
    """
    blocks: list[Block] = [
        section(
            template(
                "The agent has not read this. Choose what it is: your answer, the "
                "reason of an edit, or the reason to reject. A form opens with your "
                "words in it; nothing is recorded before you send that."
            )
        ),
        rich_text(box(excerpt(words, _SHOWN).text), block_id=f"words:{ts}"),
    ]
    for index, verbs in list(allowed.items())[:MAX_ROWS]:
        item = frame.approval.items[index]
        if frame.approval.is_batch:
            nth = template(
                "Call {n} of {of}", n=index + 1, of=len(frame.approval.items)
            )
            blocks.append(context(nth, untrusted(fit(item.tool, _TOOL))))
        made = [_button(frame, item, verb) for verb in BY_VERB if verb in verbs]
        blocks.append(actions(*made, block_id=block_id(ts, index)))
    if len(allowed) > MAX_ROWS:
        more = template(
            "{n} more calls wait; use their buttons.", n=len(allowed) - MAX_ROWS
        )
        blocks.append(context(more))
    text = (
        "Choose what your words are: an answer, the reason of an edit, or a rejection."
    )
    return Message(tuple(blocks), text)


def block_id(ts: str, index: int) -> str:
    """Return the id of the block with the buttons for one call."""
    return f"words:{ts}:{index}"


def ts_of(block: str) -> str:
    """Return which message a button's words stand in; "" for another block."""
    kind, _, rest = block.partition(":")
    # Input from a client: whatever it says, it only names a key that also holds the
    # user who clicked.
    return rest.rpartition(":")[0] if kind == "words" else ""


def _button(frame: Frame, item: Item, verb: Verb) -> Block:
    action = BY_VERB[verb]
    return frame.button(
        item.index,
        action,
        _NAMES[verb],
        style="danger" if verb is Verb.REJECT else None,
        accessibility_label=label(_SPOKEN[verb].format(n=item.index + 1)),
    )
