"""Render an approval as one Slack message (the card), in every state.

From top to bottom: the header, state and requester; each call with its arguments, the
agent's description and the buttons; and the batch footer. As long as a call needs
somebody, its arguments stay; when all have ended, the card collapses (`finished`).
Untrusted text is always preformatted or plain text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import LiteralString

from keyturn.bot.blocks import (
    TEXT_BUDGET,
    Block,
    Message,
    actions,
    block_object,
    bold,
    box,
    context,
    divider,
    header,
    line,
    rich_text,
    section,
)
from keyturn.bot.cards import buttons
from keyturn.bot.cards.batch_footer import batch_footer
from keyturn.bot.cards.call_rows import (
    agent_statement,
    call_row,
    checked,
    listings,
    result_title,
    state,
)
from keyturn.bot.cards.deadlines import expires_each
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.finished import finished, is_finished
from keyturn.bot.cards.frame import Frame, is_table
from keyturn.bot.cards.mentions import mentions_for, reached
from keyturn.bot.cards.noticed import in_order, mark, noticed, notices, totals
from keyturn.bot.cards.precedents import precedents
from keyturn.bot.cards.refs import asked_by, join_list, place, short_ref, when
from keyturn.bot.cards.spot_check import spot_checks
from keyturn.bot.cards.states import frozen, header_text, status_label, taken_by
from keyturn.bot.cards.table import cell_values, table_of
from keyturn.bot.cards.votes import named_role
from keyturn.bot.ids import CARD_EVENT
from keyturn.bot.text import (
    Plain,
    Template,
    excerpt,
    fit,
    joined,
    label,
    template,
)
from keyturn.gateway.approvals.collected import is_collected
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.effect import Effect, gravest
from keyturn.gateway.protocol.states import ItemState
from keyturn.sandbox.blockkit import JSON, limits
from keyturn.sandbox.blockkit.payload_rules import text_length

_ENTRIES = 3
"""Calls in doubt that have buttons on the card, and failures whose error it shows."""
_NUMBERS = 8
_ARGS = 100
_ERROR = 160
_FAILED: LiteralString = "❌ *{n} of {all} failed:*"
_DOUBTFUL: LiteralString = "❓ *{n} of {all} may have run:*"
_CUT: LiteralString = "There is more to say than fits here: open the marked calls."


def many_calls(frame: Frame, *, room: int) -> tuple[list[Block], Block]:
    """Return what a card says of its calls, and their table, what needs a look first.

    Args:
        frame: of the card.
        room: how many characters there are. The table is never cut for what stands
            above it: then less is said there, and the marks stay.
    """
    approval = frame.approval
    found = noticed(approval)
    heading, *cells = table_of(approval).rows
    rows: list[JSON] = [_cells(heading)]
    for item in in_order(approval, found):
        number, *others = cells[item.index]
        rows.append(_cells([mark(item, found) + number, *others]))
    # Else Slack clips a long cell: nobody may approve what is not shown.
    wrapped: list[JSON] = [{"is_wrapped": True} for _ in heading]
    table = block_object("table", rows=rows, column_settings=wrapped)
    says = agent_statement(frame)
    left = room - text_length([table, *says]) - len(_CUT)
    first, then = _failures(frame), notices(frame)
    failures = _fitting(first, left)
    above = _fitting([[one] for one in then], left - text_length(failures))
    is_cut = len(failures) + len(above) < sum(map(len, first)) + len(then)
    cut = [context(template(_CUT))] if is_cut else []
    return [*failures, *says, *above, *cut], table


def _fitting(parts: Iterable[Sequence[Block]], room: int) -> list[Block]:
    """Return the parts for which there is room."""
    blocks: list[Block] = []
    for part in parts:
        if text_length([*blocks, *part]) <= room:
            blocks += part
    return blocks


def _cells(row: Iterable[str]) -> JSON:
    return [{"type": "raw_text", "text": cell} for cell in row]


def _failures(frame: Frame) -> list[list[Block]]:
    """Name the calls that failed or may have run, with the buttons to answer."""
    items = frame.approval.items
    doubts = [item for item in items if item.state is ItemState.IN_DOUBT]
    ended = [item for item in items if item.state is ItemState.FAILED]
    failed = [item for item in items if item.has_failed] + ended
    heads: tuple[tuple[LiteralString, list[int]], ...] = (
        (_FAILED, sorted(item.index for item in failed)),
        (_DOUBTFUL, [item.index for item in doubts if not item.has_failed]),
    )
    lines = [_named(head, found, len(items)) for head, found in heads if found]
    if not lines:
        return []
    parts = [[section(joined("\n", lines))]]
    parts += [_in_doubt(frame, item) for item in doubts[:_ENTRIES]]
    more = len(doubts) - _ENTRIES
    if more > 0:
        text = template("{n} more need an answer: *Open a call…* below.", n=more)
        parts.append([context(text)])
    errors = [
        f"{item.index + 1}: {excerpt(item.result.summary, _ERROR).text}"
        for item in ended
        if item.result and item.result.summary
    ][: max(0, _ENTRIES - len(doubts))]
    if errors:
        says = line(bold(label("Errors (as reported):")))
        boxes = [box(text) for text in errors]
        parts.append([rich_text(says, *boxes)])
    return parts


def _named(head: LiteralString, indexes: Sequence[int], every: int) -> Template:
    numbers = [template("#{n}", n=index + 1) for index in indexes[:_NUMBERS]]
    more = len(indexes) - _NUMBERS
    rest = [template("and {n} more", n=more)] if more > 0 else []
    counted = template(head, n=len(indexes), all=every)
    return joined(" ", [counted, joined(", ", numbers), *rest])


def _in_doubt(frame: Frame, item: Item) -> list[Block]:
    """Return one call in doubt: what it is, its error, and the buttons to answer."""
    values = cell_values(item).items()
    args = " · ".join(f"{name} {text}" for name, text in values)
    what = "failed" if item.has_failed else "may have run"
    title = label(f"Call {item.index + 1} {what}:")
    parts = [line(bold(title)), box(fit(args, _ARGS))]
    if item.result and item.result.summary:
        parts += [line(bold(label(f"{result_title(item.result)}:")))]
        parts += [box(excerpt(item.result.summary, _ERROR).text)]
    return [
        rich_text(*parts, *checked(frame, item)),
        actions(*buttons.decisions(frame, item, is_shown_whole=True)),
    ]


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
        header(header_text(approval, now_ms=frame.now_ms)),
        *([] if approval.is_batch else [state(frame)]),
        _origin(frame),
        *_time(frame),
        *reviewers(frame),
        *reached(frame),
        *precedents(frame),
    ]
    if approval.is_batch and not is_table(approval):
        blocks += [*totals(frame), *agent_statement(frame)]
    for index, shown in ({} if is_table(approval) else listings(approval)).items():
        if approval.is_batch:
            blocks.append(divider())
        blocks += call_row(frame, approval.items[index], shown)
    footer = batch_footer(frame)
    taken = len(blocks) + approval.is_batch + len(footer)
    checks = spot_checks(frame, limits.BLOCKS_IN_MESSAGE - taken)
    # A rule below which nothing stands looks like a part that is missing.
    has_rule = approval.is_batch and bool(footer or checks)
    rule = [divider()] if has_rule else []
    if is_table(approval):
        used = text_length([*blocks, *footer, *checks])
        says, table = many_calls(frame, room=TEXT_BUDGET - used)
        # The buttons stand above the rows: below fifty of them nobody would see them.
        blocks += [*says, *footer, table, *checks]
    else:
        blocks += [*rule, *footer, *checks]
    if text_length(blocks) > TEXT_BUDGET and not frame.is_crowded:
        return card(replace(frame, is_crowded=True))
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
    )


def _time(frame: Frame) -> list[Block]:
    approval = frame.approval
    sentence: list[Template | Plain] = [*_effect(approval), *_how_many(approval)]
    if is_collected(approval):
        sentence.append(template("Each call is a request of its own."))
    if approval.escalated_at_ms:
        at, called = when(approval.escalated_at_ms), approval.waiting
        roles = [named_role(role.name) for role in called.roles]
        # The channels first: a long list is cut at its end.
        whom = join_list([*map(place, called.channels[:_PLACES]), *roles])
        head = template("📣 *Escalated* {at} to", at=at)
        sentence.append(joined(" ", [head, whom]))
    if frame.is_crowded:
        sentence.append(template("Notes are left out: open *Full details*."))
    sentence += frozen(approval.items, are_many=approval.is_batch)
    taken = taken_by(approval, now_ms=frame.now_ms)
    if taken is not None:
        sentence.append(taken)
    return [context(*sentence)] if sentence else []


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
    return [section(joined(" ", [sentence, whom.named]))]


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
