"""Render an approval as one Slack message (the card), in every state.

From top to bottom: the header, state and requester; each call with its arguments, the
agent's description and the buttons; and the batch footer. As long as a call needs
somebody, its arguments stay; when all have ended, the card collapses (`finished`).
Untrusted text is always preformatted or plain text.
"""

from __future__ import annotations

from twokey.bot.blocks import (
    Message,
    context,
    divider,
    header,
    section,
)
from twokey.bot.cards.batch_footer import batch_footer
from twokey.bot.cards.call_rows import agent_statement, call_row, state
from twokey.bot.cards.deadlines import expires_each
from twokey.bot.cards.fallbacks import card_fallback
from twokey.bot.cards.finished import finished, is_finished
from twokey.bot.cards.frame import Frame, is_table, rows_of
from twokey.bot.cards.many_calls import many_calls
from twokey.bot.cards.mentions import mentions_for
from twokey.bot.cards.noticed import totals
from twokey.bot.cards.precedents import precedents
from twokey.bot.cards.reached import reached
from twokey.bot.cards.refs import asked_by, places, short_ref, when
from twokey.bot.cards.spot_check import spot_checks
from twokey.bot.cards.states import frozen, header_text, status_label, taken_by
from twokey.bot.ids import CARD_EVENT
from twokey.bot.objects import Block
from twokey.bot.text import fit
from twokey.bot.text_types import (
    Plain,
    Template,
    joined,
    label,
    template,
)
from twokey.gateway.approvals.collected import is_collected
from twokey.gateway.approvals.lifecycle import ApprovalState
from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol.effect import Effect, gravest
from twokey.sandbox.blockkit import limits
from twokey.sandbox.blockkit.payload_rules import text_length

_CALLED = 60
_PLACES = 2
_EFFECTS = {
    Effect.READ: template("Only reads"),
    Effect.REVERSIBLE: template("Can be undone"),
    Effect.IRREVERSIBLE: template("⚠️ *Cannot be undone*"),
}
_MANY = 10
"""From how many requests of the agent in ten minutes on a card says so."""


def card(frame: Frame) -> Message:
    """Return the card of an approval as it stands; past its expiry without buttons."""
    approval = frame.approval
    if is_finished(approval):
        blocks, text = finished(frame), card_fallback(approval)
        return Message(tuple(blocks), text, metadata(approval))
    blocks = [
        header(
            header_text(approval, now_ms=frame.now_ms), block_id=frame.block_id("head")
        ),
        *([] if approval.is_batch else [state(frame)]),
        _origin(frame),
        *_time(frame),
        *reviewers(frame),
        *reached(frame),
        *precedents(frame),
    ]
    if approval.is_batch and not is_table(approval):
        blocks += [*totals(frame), *agent_statement(frame)]
    for item in () if is_table(approval) else rows_of(approval):
        if approval.is_batch:
            blocks.append(divider(block_id=frame.block_id(f"{item.index}.line")))
        blocks += call_row(frame, item)
    footer = batch_footer(frame)
    taken = len(blocks) + approval.is_batch + len(footer)
    checks = spot_checks(frame, limits.BLOCKS_IN_MESSAGE - taken)
    # A rule below which nothing stands looks like a part that is missing.
    has_rule = approval.is_batch and bool(footer or checks)
    rule = [divider(block_id=frame.block_id("line"))] if has_rule else []
    if is_table(approval):
        used = text_length([*blocks, *footer, *checks])
        says, table = many_calls(frame, room=limits.TEXT_IN_ALL_BLOCKS - used)
        # The buttons stand above the rows: below fifty of them nobody would see them.
        blocks += [*says, *footer, table, *checks]
    else:
        blocks += [*rule, *footer, *checks]
    return Message(
        blocks=tuple(blocks), text=card_fallback(approval), metadata=metadata(approval)
    )


def metadata(approval: Approval) -> Block:
    """Return a card's message metadata: ids only."""
    return {
        "event_type": CARD_EVENT,
        "event_payload": {
            "approval": approval.id,
            "version": approval.version,
            "rev": approval.rev,
        },
    }


def _origin(frame: Frame) -> Block:
    approval = frame.approval
    is_open = approval.state is ApprovalState.OPEN
    return context(
        *status_label(approval, now_ms=frame.now_ms),
        *asked_by(frame),
        *(expires_each(approval) if approval.is_batch and is_open else []),
        template("{id}", id=short_ref(approval.id)),
        block_id=frame.block_id("origin"),
    )


def _time(frame: Frame) -> list[Block]:
    approval = frame.approval
    sentence: list[Template | Plain] = [*_effect(approval), *_how_many(approval)]
    if is_collected(approval):
        sentence.append(template("Each call is a request of its own."))
    if approval.escalated_at_ms:
        at = when(approval.escalated_at_ms)
        sentence.append(template("📣 *Escalated* {at} to", at=at))
        roles = ", ".join(role.name for role in approval.waiting.roles)
        sentence += [label(fit(roles, _CALLED))] if roles else []
        sentence += places(approval.waiting.channels[:_PLACES])
    sentence += frozen(approval.items, are_many=approval.is_batch)
    taken = taken_by(approval, now_ms=frame.now_ms)
    if taken is not None:
        sentence.append(taken)
    return [context(*sentence, block_id=frame.block_id("time"))] if sentence else []


def reviewers(frame: Frame) -> list[Block]:
    """Mention the reviewers who are needed; Slack notifies them of the posted card."""
    approval = frame.approval
    # Once the time is over, only what may have run still needs people.
    asking = [
        item for item in approval.items if not (item.is_pending and frame.is_late)
    ]
    # Slack notifies of mentions in a new message only, so nobody may be mentioned here
    # who need not act: a redraw could not take the notification back.
    whom = mentions_for(approval.with_(items=tuple(asking)))
    if not whom.roles:
        return []
    sentence = template("*Reviewers:*")
    return [
        section(joined(" ", [sentence, whom.named]), block_id=frame.block_id("people"))
    ]


def _effect(approval: Approval) -> list[Template | Plain]:
    """Say whether it can be taken back, where the policy has said so of its tools."""
    said = [item.effect_class for item in approval.items]
    if not any(said):
        return []
    # Of a tool without a class nobody knows that it can.
    return [_EFFECTS[gravest(one or Effect.IRREVERSIBLE for one in said)]]


def _how_many(approval: Approval) -> list[Template | Plain]:
    """Say how much this agent asked before, where that is more than usual.

    The calls of this card do not count: the card shows how many they are.
    """
    before = approval.recent_requests - 1
    if before < _MANY:
        return []
    return [label(f"This agent made {before} other requests in 10 minutes")]
