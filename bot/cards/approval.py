"""Render an approval as one Slack message (the card), in every state.

From top to bottom: the header, state and requester; each call with its arguments, the
agent's description and the buttons; and the batch footer. Untrusted text is always
preformatted or plain text.

Arguments stay on the card while a call needs a person. When all calls have ended, the
card collapses to three lines, and Full details have the rest. The header names the
call, the second line has the deciders, the outcome and its time, and the last line has
the requester. Between them the card shows people's changes with their reasons, or the
error, in short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import LiteralString

from keyturn.bot.blocks import (
    TEXT_BUDGET,
    Block,
    Message,
    actions,
    block_object,
    box,
    context,
    divider,
    header,
    notes,
    rich_text,
    section,
    titled,
)
from keyturn.bot.cards import buttons
from keyturn.bot.cards.call_rows import (
    FINDINGS,
    agent_statement,
    batch_footer,
    call_row,
    checked,
    late_report,
    listings,
    result_title,
    state,
)
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.frame import Frame, is_table
from keyturn.bot.cards.listing import call_title, diff, one_line
from keyturn.bot.cards.mentions import mentions_for, reached
from keyturn.bot.cards.quality_checks import spot_checks
from keyturn.bot.cards.refs import (
    asked_by,
    join_list,
    people,
    place,
    short_ref,
    when,
    who,
)
from keyturn.bot.cards.states import (
    MAX_ACT,
    SEVERAL,
    SIGNS,
    STATE_NAMES,
    approvers,
    counted,
    expires_each,
    frozen,
    is_own_edit,
    named_role,
    state_counts,
    status_sentence,
    taken_by,
)
from keyturn.bot.cards.table import (
    cell_values,
    header_total,
    in_order,
    mark,
    noticed,
    notices,
    precedents,
    table_of,
    totals,
)
from keyturn.bot.ids import CARD_EVENT
from keyturn.bot.text import (
    Label,
    Plain,
    Template,
    excerpt,
    fit,
    joined,
    label,
    parted,
    template,
    untrusted,
)
from keyturn.gateway.approvals.lifecycle import UNEXECUTED, ApprovalState
from keyturn.gateway.approvals.record import Approval, Item, is_collected
from keyturn.gateway.approvals.timing import is_over
from keyturn.gateway.protocol.records import Effect, ItemState, Person, Verb, gravest
from keyturn.sandbox.blockkit import JSON, limits
from keyturn.sandbox.blockkit.payload_rules import text_length

_ENTRIES = 3
"""Calls in doubt that have buttons on the card, and failures whose error it shows."""
_NUMBERS = 8
_ARGS = 100
_ERROR = 160
_FAILED: LiteralString = "❌ *{n} of {all} failed:*"
_DOUBTFUL: LiteralString = "❓ *{n} of {all} may have run:*"
_CUT: LiteralString = "Not all notes fit here: open the marked calls."


def many_calls(frame: Frame, *, room: int) -> tuple[list[Block], Block]:
    """Return the notes about a card's calls, and their table with marked calls first.

    Args:
        frame: of the card.
        room: available characters. The table is never cut to make room for the notes
            above it: these are shortened, and the marks stay.
    """
    approval = frame.approval
    found = noticed(approval)
    heading, *cells = table_of(approval).rows
    rows: list[JSON] = [_cells(heading)]
    for item in in_order(approval, found):
        number, *others = cells[item.index]
        rows.append(_cells([mark(item, found) + number, *others]))
    # Otherwise Slack clips a long cell, and people would approve text that they cannot
    # see.
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
        parts.append([rich_text(*titled("Errors (as reported):", *errors))])
    return parts


def _named(head: LiteralString, indexes: Sequence[int], every: int) -> Template:
    shown = [template("#{n}", n=index + 1) for index in indexes[:_NUMBERS]]
    more = len(indexes) - _NUMBERS
    rest = [template("and {n} more", n=more)] if more > 0 else []
    counted = template(head, n=len(indexes), all=every)
    return joined(" ", [counted, joined(", ", shown), *rest])


def _in_doubt(frame: Frame, item: Item) -> list[Block]:
    """Return one call in doubt: its arguments, its error, and the buttons to answer."""
    values = cell_values(item).items()
    args = " · ".join(f"{name} {text}" for name, text in values)
    what = "failed" if item.has_failed else "may have run"
    parts = titled(f"Call {item.index + 1} {what}:", fit(args, _ARGS))
    if item.result and item.result.summary:
        error = excerpt(item.result.summary, _ERROR).text
        parts += titled(f"{result_title(item.result)}:", error)
    return [
        rich_text(*parts, *checked(frame, item)),
        actions(*buttons.decisions(frame, item, is_shown_whole=True)),
    ]


MAX_TOOL = 120
"""Maximum characters of the name of a tool next to a number of calls."""

_PLACES = 2
_EFFECTS = {
    Effect.READ: template("Only reads"),
    Effect.REVERSIBLE: template("Can be undone"),
    Effect.IRREVERSIBLE: template("⚠️ *Cannot be undone*"),
}
_MANY = 10
"""Minimum number of the agent's requests in ten minutes that a card mentions."""


def card(frame: Frame) -> Message:
    """Return the current card of an approval; after its expiry without buttons."""
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
    # A rule with nothing below it looks like a missing part.
    has_rule = approval.is_batch and bool(footer or checks)
    rule = [divider()] if has_rule else []
    if is_table(approval):
        used = text_length([*blocks, *footer, *checks])
        says, table = many_calls(frame, room=TEXT_BUDGET - used)
        # The buttons are above the rows: below fifty of them they would be overlooked.
        blocks += [*says, *footer, table, *checks]
    else:
        blocks += [*rule, *footer, *checks]
    if text_length(blocks) > TEXT_BUDGET and not frame.is_crowded:
        return card(replace(frame, is_crowded=True))
    return Message(
        blocks=tuple(blocks), text=card_fallback(approval), metadata=metadata(approval)
    )


def header_text(approval: Approval, *, now_ms: int) -> Plain:
    """Return the header of a card: the sign of its state, and the call or calls."""
    if not approval.is_batch:
        item = approval.items[0]
        sign, _ = parted(status_sentence(approval, item, now_ms=now_ms))
        return untrusted(f"{sign} {fit(call_title(item), MAX_ACT)}")
    return batch_title(approval, _batch_state(approval, now_ms)[0])


def batch_title(approval: Approval, sign: str) -> Plain:
    """Return the header of several calls: their number, tools and a total."""
    tools = [*dict.fromkeys(one_line(item.tool) for item in approval.items)]
    total = header_total(approval)
    room = min(MAX_TOOL, MAX_ACT - 15 - len(total))
    count = len(approval.items)
    number = f"{count} ×" if len(tools) == 1 else f"{counted(count)}:"
    text = f"{sign} {number} {fit(', '.join(tools), room)}"
    return untrusted(f"{text} · {total}" if total else text)


def status_label(approval: Approval, *, now_ms: int) -> list[Label]:
    """Return the state of several calls in a few words, for the line below the header.

    A single call has a sentence there, see `status_sentence`.
    """
    return [_batch_state(approval, now_ms)[1]] if approval.is_batch else []


def _batch_state(approval: Approval, now_ms: int) -> tuple[str, Label]:
    """Return the state of several calls: a sign, and fixed words with numbers."""
    every = len(approval.items)
    waiting = sum(item.is_pending for item in approval.items)
    doubts = sum(item.state is _S.IN_DOUBT for item in approval.items)
    # The sweeper closes the record a moment later; until then its state is still open.
    if waiting and is_over(approval, now_ms):
        return SIGNS[_S.EXPIRED], label("The time is over")
    if waiting:
        of = "" if waiting == every else f": {waiting} of {every} calls"
        return SIGNS[_S.PENDING], label(f"Approval needed{of}")
    if doubts:
        return SIGNS[_S.IN_DOUBT], label(f"Please check {doubts} of {every} calls")
    return SEVERAL, label(state_counts(approval))


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
        sentence.append(template("Each call is a separate request."))
    if approval.escalated_at_ms:
        at, called = when(approval.escalated_at_ms), approval.waiting
        roles = [named_role(role.name) for role in called.roles]
        # The channels first: a long list is cut at its end.
        whom = join_list([*map(place, called.channels[:_PLACES]), *roles])
        sentence.append(template("📣 *Escalated* {at} to {whom}", at=at, whom=whom))
    if frame.is_crowded:
        sentence.append(template("Not all notes fit here: open *Full details*."))
    sentence += frozen(approval.items)
    taken = taken_by(approval, now_ms=frame.now_ms)
    return notes([*sentence, *([taken] if taken else [])])


def reviewers(frame: Frame) -> list[Block]:
    """Mention the reviewers who are needed; Slack notifies them of the posted card."""
    approval = frame.approval
    # After the expiry only calls that may have run still need people.
    asking = [
        item for item in approval.items if not (item.is_pending and frame.is_late)
    ]
    # Slack notifies only of mentions in a new message, and a redraw cannot take the
    # notification back. So only people who need to act are mentioned.
    whom = mentions_for(approval.with_(items=tuple(asking)))
    sentence = template("*Reviewers:* {whom}", whom=whom.named)
    return [section(sentence)] if whom.roles else []


def _effect(approval: Approval) -> list[Template | Plain]:
    """Describe whether the calls can be undone, if the policy classifies any."""
    said = [item.effect_class for item in approval.items]
    if not any(said):
        return []
    # A tool without a class counts as irreversible.
    return [_EFFECTS[gravest(one or Effect.IRREVERSIBLE for one in said)]]


def _how_many(approval: Approval) -> list[Template | Plain]:
    """Count the agent's recent requests, if there were unusually many.

    The calls of this card do not count: the card shows their number.
    """
    before = approval.recent_requests - 1
    if before < _MANY:
        return []
    return [label(f"This agent made {before} other requests in 10 minutes")]


_S = ItemState
ENDED = UNEXECUTED | {_S.EXECUTED, _S.FAILED}
"""States that need no action; a failure is one of them."""

_BY_URGENCY = (
    _S.FAILED,
    *sorted(UNEXECUTED - {_S.REJECTED, _S.ANSWERED}),
    _S.EXECUTED,
    _S.REJECTED,
    _S.ANSWERED,
)
"""The order in which a batch counts its calls: failures first."""

_QUOTE = 120
_CHANGE = 100
_ROW = 90
_ROWS = 5
_UNDECIDED = frozenset({_S.EXPIRED, _S.SUPERSEDED})
_REASONS: dict[Verb, LiteralString] = {
    Verb.REJECT: "Reason:",
    Verb.RESPOND: "Answer:",
}


def is_finished(approval: Approval) -> bool:
    """Return whether all calls of a card need no action any more.

    A call in doubt needs a person, and so does a spot check, which needs the arguments.
    """
    return all(
        item.state in ENDED and not item.is_to_be_checked for item in approval.items
    )


def finished(frame: Frame) -> list[Block]:
    """Return the blocks of a card that has no more decisions."""
    blocks = _of_batch(frame) if frame.approval.is_batch else _of_one(frame)
    return [*blocks, *spot_checks(frame)]


def _of_one(frame: Frame) -> list[Block]:
    approval, item = frame.approval, frame.approval.items[0]
    # The header already has its sign.
    _, status = parted(status_sentence(approval, item, now_ms=frame.now_ms))
    said, words = _remarks(item), _words(item)
    return [
        header(header_text(approval, now_ms=frame.now_ms)),
        section(status, accessory=buttons.view_all(frame, item)),
        *notes(said),
        *([_box(words)] if words else []),
        _foot(frame),
    ]


def _foot(frame: Frame) -> Block:
    ids = template("{id}", id=short_ref(frame.approval.id))
    return context(*asked_by(frame), ids)


def _remarks(item: Item) -> list[Template | Plain]:
    """Return the events besides the decision, in the bot's words."""
    found: list[Template | Plain] = []
    if item.edit is not None and not is_own_edit(item):
        found.append(template("Edited by {who}.", who=who(item.edit.by)))
    if item.revoked is not None and item.revoked.is_final:
        found.append(label(fit(item.revoked.reason, _QUOTE)))
    for one in item.observations[-1:]:
        said: LiteralString = "Checked by {who}: " + FINDINGS[one.finding]
        found.append(template(said, who=who(one.by)))
    if item.late_result is not None:
        found.append(label(late_report(item, item.late_result)[0]))
    return found


def _words(item: Item) -> list[tuple[LiteralString, str]]:
    """Return the words of people and the tool, and the edit, with titles."""
    found: list[tuple[LiteralString, str]] = []
    edit, decision = item.edit, item.decision
    if edit is not None:
        found.append(("Changed:", _changed(item)))
        found.append(("Why:", edit.reason))
    if decision is not None and decision.verb in _REASONS:
        found.append((_REASONS[decision.verb], decision.text))
    found.extend(("Note:", one.note) for one in item.observations[-1:])
    if item.late_result is None and item.state is _S.FAILED and item.result is not None:
        has_started = item.result.has_started
        title: LiteralString = "Tool says:" if has_started else "Not started:"
        found.append((title, item.result.summary))
    return [(title, text) for title, text in found if text.strip()]


def _box(words: Sequence[tuple[LiteralString, str]]) -> Block:
    """Return other people's words in a box, so that they cannot pass for the bot's.

    Each text is on one line after its title, so that it cannot pass for another text.
    """
    width = max(len(title) for title, _ in words)
    lines = [
        f"{title:<{width}} {fit(' '.join(text.split()), _QUOTE)}"
        for title, text in words
    ]
    return rich_text(box("\n".join(lines)))


def _changed(item: Item) -> str:
    lines = diff(item, budget=_CHANGE).splitlines()
    # One line alone: values on several lines could look like changes of other
    # arguments.
    is_short = len(lines) == 1 and len(lines[0]) <= _CHANGE
    return lines[0] if is_short else "see Full details"


def _of_batch(frame: Frame) -> list[Block]:
    approval = frame.approval
    last = max(item.changed_at_ms for item in approval.items)
    parts = [_counts(approval), *_deciders(approval)]
    parts.append(template("Last change {at}.", at=when(last)))
    view = (
        buttons.open_call(frame)
        if is_table(approval)
        else buttons.view_all(frame, _by_urgency(approval.items)[0])
    )
    states = {item.state for item in approval.items}
    sign = SEVERAL
    if _S.FAILED in states or len(states) == 1:
        sign = SIGNS[_S.FAILED if _S.FAILED in states else min(states)]
    return [
        header(batch_title(approval, sign)),
        section(joined(" ", parts), accessory=view),
        *_rows(frame),
        *totals(frame),
        _foot(frame),
    ]


def _counts(approval: Approval) -> Template:
    """Return "*1 failed*, 54 done, 1 rejected. 2 were edited."."""
    counts = Counter(item.state for item in approval.items)
    words: dict[ItemState, LiteralString] = {**STATE_NAMES, _S.FAILED: "*failed*"}
    named = [
        template("{n} " + words[state], n=counts[state])
        for state in _BY_URGENCY
        if counts[state]
    ]
    sentence = template("{parts}.", parts=joined(", ", named))
    if edited := sum(item.edit is not None for item in approval.items):
        return template("{said} Edited: {n}.", said=sentence, n=edited)
    return sentence


def _deciders(approval: Approval) -> list[Template]:
    found: dict[tuple[str, str], Person] = {}
    for item in approval.items:
        if item.state not in _UNDECIDED:
            found |= {(one.team, one.user): one for one in approvers(item)}
    named = people([*found.values()])
    return [template("Decided by {who}.", who=named)] if found else []


def _rows(frame: Frame) -> list[Block]:
    """Return a line for each of a few calls; of many, only for the failures."""
    approval = frame.approval
    items = _by_urgency(approval.items)
    if is_table(approval):
        items = [one for one in items if one.state is _S.FAILED or one.is_contradicted]
    if not items:
        return []
    lines = [_line(item) for item in items[:_ROWS]]
    more = len(items) - _ROWS
    lines += [f"… and {more} more: Full details"] if more > 0 else []
    return [rich_text(box("\n".join(lines)))]


def _line(item: Item) -> str:
    sign = SIGNS[item.state]
    title = " ".join(call_title(item).split())
    edited = ", edited" if item.edit is not None else ""
    error = " ".join(item.result.summary.split()) if item.result else ""
    why = f": {fit(error, _ROW)}" if error and item.state is _S.FAILED else ""
    said = f"{STATE_NAMES[item.state]}{edited}{why}"
    if item.is_contradicted and item.late_result is not None:
        said += f". {late_report(item, item.late_result)[0]}"
    return f"{sign} {item.index + 1}. {fit(title, _ROW)} ({said})"


def _by_urgency(items: Sequence[Item]) -> list[Item]:
    """Sort the calls: those that went wrong first, the rest in their order."""
    return sorted(
        items,
        key=lambda item: (
            item.state is not _S.FAILED and not item.is_contradicted,
            item.index,
        ),
    )
