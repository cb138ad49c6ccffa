"""Render an approval as one Slack message (the card), in every state.

From top to bottom: the header; one line with the requester, agent, expiry and
reviewers; each call with its arguments, the agent's reason and the buttons; and the
batch footer. Untrusted text is always preformatted or plain text.

Arguments stay on the card while a call needs a person. When all calls have ended, the
card collapses to two lines, and Full details have the rest. The header names the call,
and the second line has the deciders, the outcome and its time. Below them the card
shows people's changes with their reasons, or the error, in short.
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
    agent_statement,
    batch_footer,
    call_row,
    call_state,
    checked,
    late_report,
    listings,
    result_title,
)
from keyturn.bot.cards.frame import Frame, is_table
from keyturn.bot.cards.listing import call_title, calls_title, edit_text, editor
from keyturn.bot.cards.mentions import mentions_for, reached
from keyturn.bot.cards.refs import (
    asked,
    calls_named,
    join_list,
    people,
    place,
    short_ref,
    unusual_agent,
    when,
    who,
)
from keyturn.bot.cards.special_cards import (
    notification_footer,
    questions,
    spot_checks,
    standing_approval,
)
from keyturn.bot.cards.states import (
    ENDED,
    FINDINGS,
    MAX_ACT,
    NOT_TAKEN,
    SIGNS,
    STATE_NAMES,
    approvers,
    batch_state,
    caller_gone,
    card_fallback,
    expires_each,
    frozen,
    handed_words,
    is_just_waiting,
    named_role,
    run_elsewhere,
    state_counts,
    taken_by,
)
from keyturn.bot.cards.table import (
    cell_values,
    header_total,
    in_order,
    mark,
    marks,
    noticed,
    notices,
    precedents,
    table_of,
    totals,
)
from keyturn.bot.ids import CARD_EVENT
from keyturn.bot.text import (
    LINE,
    NOTE,
    Plain,
    Template,
    excerpt,
    fit,
    joined,
    label,
    template,
    untrusted,
)
from keyturn.gateway.approvals.record import Approval, Item, is_collected
from keyturn.gateway.protocol.records import Effect, ItemState, Person, Verb
from keyturn.sandbox.blockkit import JSON, limits
from keyturn.sandbox.blockkit.payload_rules import text_length

_ENTRIES = 3
"""Calls in doubt that have buttons on the card, and failures whose error it shows."""
_FAILED: LiteralString = "❌ *{n} of {all} failed:* {calls}"
_DOUBTFUL: LiteralString = "❓ *{n} of {all} may have run:* {calls}"
_CUT = template("Not all notes fit here: open the marked calls.")


def many_calls(frame: Frame, *, room: int) -> tuple[list[Block], Block]:
    """Return the notes about a card's calls, and their table with marked calls first.

    Args:
        frame: of the card.
        room: available characters. The table is never cut to make room for the notes
            above it: these are shortened, and the marks stay.
    """
    approval = frame.approval
    found = noticed(approval)
    shown = table_of(approval)
    heading, *cells = shown.rows
    rows: list[JSON] = [_cells(heading)]
    for item in in_order(approval, found):
        number, *others = cells[item.index]
        rows.append(_cells([mark(item, found) + number, *others]))
    table = block_object("table", rows=rows, column_settings=[*shown.columns])
    says = agent_statement(frame)
    left = room - text_length([table, *says, context(_CUT)])
    above: list[Block] = []
    # Before the agent's words, which must not talk a mark away.
    parts = [*_failures(frame), marks(frame), says, *([one] for one in notices(frame))]
    for part in parts:
        if part is says or text_length([*above, *part]) <= left:
            above += part
    is_cut = len(above) < sum(map(len, parts))
    return [*above, *([context(_CUT)] if is_cut else [])], table


def _cells(row: Iterable[str]) -> JSON:
    return [{"type": "raw_text", "text": cell} for cell in row]


def _failures(frame: Frame) -> list[list[Block]]:
    """Name the calls that failed or may have run, with the buttons to answer."""
    items = frame.approval.items
    doubts = [item for item in items if item.state is _S.IN_DOUBT]
    ended = [item for item in items if item.state is _S.FAILED]
    failed = [item.index for item in items if item.has_failed or item in ended]
    unknown = [item.index for item in doubts if not item.has_failed]
    heads: list[tuple[LiteralString, list[int]]]
    heads = [(_FAILED, failed), (_DOUBTFUL, unknown)]
    lines = [
        template(head, n=len(found), all=len(items), calls=calls_named(found))
        for head, found in heads
        if found
    ]
    parts = [[section(joined("\n", lines))]] if lines else []
    parts += [_in_doubt(frame, item) for item in doubts[:_ENTRIES]]
    more = len(doubts) - _ENTRIES
    if more > 0:
        text = template("{n} more need an answer: *Open a call…* below.", n=more)
        parts.append([context(text)])
    errors = [
        f"{item.index + 1}: {excerpt(item.result.summary, LINE)}"
        for item in ended
        if item.result and item.result.summary
    ]
    if errors and not doubts:
        parts.append([rich_text(*titled("Errors (as reported):", *errors[:_ENTRIES]))])
    return parts


def _in_doubt(frame: Frame, item: Item) -> list[Block]:
    """Return one call in doubt: its arguments, its error, and the buttons to answer."""
    values = cell_values(item).items()
    args = " · ".join(f"{name} {text}" for name, text in values)
    parts = titled(f"Call {item.index + 1}:", fit(args, NOTE))
    if item.result and item.result.summary:
        error = excerpt(item.result.summary, LINE)
        parts += titled(f"{result_title(item.result)}:", error)
    return [
        rich_text(*parts, *checked(frame, item)),
        actions(*buttons.decisions(frame, item, is_shown_whole=True)),
    ]


_TOOLS = 120
"""Maximum characters of the names of tools next to a number of calls."""

_PLACES = 2
_MANY = 10
"""Minimum number of the agent's requests in ten minutes that a card mentions."""


def card(frame: Frame) -> Message:
    """Return the current card of an approval; after its expiry without buttons."""
    approval = frame.approval
    blocks = _blocks(frame)
    if text_length(blocks) > TEXT_BUDGET and not frame.is_crowded:
        return card(replace(frame, is_crowded=True))
    payload: Block = {
        "approval": approval.id,
        "version": approval.version,
        "rev": approval.rev,
    }
    shown: Block = {"event_type": CARD_EVENT, "event_payload": payload}
    return Message(tuple(blocks), card_fallback(approval), metadata=shown)


def _blocks(frame: Frame) -> list[Block]:
    approval = frame.approval
    if approval.is_question:
        return [*_top(frame), *questions(frame)]
    if approval.is_standing:
        return [*_top(frame), *standing_approval(frame)]
    # A notification keeps its arguments: people can still report its calls.
    is_short = _is_finished(approval) and not approval.is_auto_approved
    return _finished(frame) if is_short else _waiting(frame)


def _waiting(frame: Frame) -> list[Block]:
    approval = frame.approval
    is_row = is_table(approval)
    # The freeze buttons of six tools leave no room for rules.
    has_rules = approval.is_batch and not approval.is_auto_approved
    blocks = [
        *_top(frame, *_unusual(frame)),
        *precedents(frame),
    ]
    if approval.is_batch and not is_row:
        blocks += [*totals(frame), *agent_statement(frame)]
    for index, shown in ({} if is_row else listings(approval)).items():
        if has_rules:
            blocks.append(divider())
        blocks += call_row(frame, approval.items[index], shown)
    footer = [
        *buttons.ask_again(frame),
        *batch_footer(frame),
        *notification_footer(frame),
    ]
    taken = len(blocks) + has_rules + len(footer)
    checks = spot_checks(frame, limits.BLOCKS_IN_MESSAGE - taken)
    if is_row:
        used = text_length([*blocks, *footer, *checks])
        says, table = many_calls(frame, room=TEXT_BUDGET - used)
        # The buttons are above the rows: below fifty of them they would be overlooked.
        return [*blocks, *says, *footer, table, *checks]
    # A rule with nothing below it looks like a missing part.
    has_last = has_rules and bool(footer or checks)
    return [*blocks, *([divider()] if has_last else []), *footer, *checks]


def _top(frame: Frame, *small: Template | Plain) -> list[Block]:
    """Return the head of a card: the act, and one line with who asked and until when.

    Args:
        frame: of the card.
        small: small print below them.
    """
    approval = frame.approval
    waits = any(item.is_pending for item in approval.items) and not frame.is_late
    is_usual = all(is_just_waiting(approval, item) for item in approval.items)
    is_of_calls = not (approval.is_question or approval.is_standing)
    if waits and is_usual and is_of_calls:
        # The buttons show that a decision is needed.
        state = expires_each(approval)
    elif approval.is_batch:
        _, words = batch_state(approval, now_ms=frame.now_ms)
        state = [template("{words}.", words=words), *expires_each(approval)]
    else:
        # The header has the sign.
        state = [call_state(frame)[1]]
    effects = {item.effect_class for item in approval.items}
    # A tool without a class counts as irreversible, if another one has a class.
    is_grave = any(effects) and {None, Effect.IRREVERSIBLE} & effects
    effect = [template("*Cannot be undone.*")] if is_grave else []
    # A card that waits begins with who asked, and any other one with its state.
    head = [asked(frame), *state] if waits else [*state, asked(frame)]
    line = joined(" ", [*head, *effect, *_reviewers(frame)])
    rest = notes([*unusual_agent(frame), *small, *reached(frame), *_short_id(frame)])
    return [_header(frame), section(line), *rest]


def _short_id(frame: Frame) -> list[Template]:
    """Return the short id if the card has no *Full details*, which show it otherwise.

    Commands take it, and cards of covered calls name their standing approval by it.
    """
    approval = frame.approval
    has_details = not (approval.is_question or approval.is_standing) and any(
        frame.can_decide(item) or item.state is _S.IN_DOUBT for item in approval.items
    )
    return [] if has_details else [template("{id}", id=short_ref(approval.id))]


def _header(frame: Frame) -> Block:
    """Return the header of a card: the sign of its state, and the call or calls."""
    approval = frame.approval
    if not approval.is_batch:
        sign, _ = call_state(frame)
        title = call_title(approval.items[0])
        return header(untrusted(f"{sign} {fit(title, MAX_ACT)}"))
    sign, _ = batch_state(approval, now_ms=frame.now_ms)
    total = header_total(approval)
    room = min(_TOOLS, MAX_ACT - 15 - len(total))
    text = f"{sign} {calls_title(approval.items, room)}"
    return header(untrusted(f"{text} · {total}" if total else text))


def _unusual(frame: Frame) -> list[Template | Plain]:
    """Return small print that most cards do not have."""
    approval = frame.approval
    sentence: list[Template | Plain] = []
    # The calls of this card do not count: the card shows their number.
    before = approval.recent_requests - 1
    if before >= _MANY:
        many = label(f"This agent made {before} other requests in 10 minutes")
        sentence.append(many)
    sentence += run_elsewhere(approval)
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
    now_ms = frame.now_ms
    taken, gone = (find(approval, now_ms=now_ms) for find in (taken_by, caller_gone))
    return [*sentence, *(one for one in (taken, gone) if one)]


def _reviewers(frame: Frame) -> list[Template]:
    """Mention the reviewers who are needed.

    Slack notifies those who are mentioned on the posted card.
    """
    approval = frame.approval
    # After the expiry only calls that may have run still need people.
    asking = [
        item for item in approval.items if not (item.is_pending and frame.is_late)
    ]
    # Slack notifies only of mentions in a new message, and a redraw cannot take the
    # notification back. So only people who need to act are mentioned.
    whom = mentions_for(approval.with_(items=tuple(asking)))
    is_question = approval.is_question
    said = "*Please answer:* {whom}" if is_question else "*Reviewers:* {whom}"
    return [template(said, whom=whom.named)] if whom.roles else []


_S = ItemState

_CHANGE = 100
_ROWS = 5
_UNDECIDED = frozenset({_S.EXPIRED, _S.SUPERSEDED})
_REASONS: dict[Verb, LiteralString] = {
    Verb.REJECT: "Reason:",
    Verb.RESPOND: "Answer:",
}


def _is_finished(approval: Approval) -> bool:
    """Return whether all calls of a card need no action any more.

    A call in doubt needs a person, and so does a spot check, which needs the arguments.
    """
    return all(
        item.state in ENDED and not item.is_to_be_checked for item in approval.items
    )


def _finished(frame: Frame) -> list[Block]:
    """Return the blocks of a card that has no more decisions."""
    approval = frame.approval
    # Those that went wrong first, the rest in their order.
    items = sorted(approval.items, key=lambda item: not _went_wrong(item))
    if is_table(approval):
        view = buttons.open_call(frame)
    else:
        view = buttons.view_all(frame, items[0])
    if approval.is_batch:
        status, rest = _decided(approval), [*_rows(frame, items), *totals(frame)]
    else:
        status, rest = call_state(frame)[1], _remarks(items[0])
    return [
        _header(frame),
        section(status, accessory=view),
        *rest,
        *buttons.ask_again(frame),
        *spot_checks(frame),
    ]


def _decided(approval: Approval) -> Template:
    """Return the states of a batch, its deciders and the time of its last change."""
    parts = [template("{counts}.", counts=state_counts(approval))]
    if edited := sum(item.edit is not None for item in approval.items):
        parts.append(template("Edited: {n}.", n=edited))
    found: dict[tuple[str, str], Person] = {}
    for item in approval.items:
        if item.state not in _UNDECIDED:
            found |= {(one.team, one.user): one for one in approvers(item)}
    if found:
        parts.append(template("Decided by {who}.", who=people([*found.values()])))
    last = max(item.changed_at_ms for item in approval.items)
    return joined(" ", [*parts, template("Last change {at}.", at=when(last))])


def _remarks(item: Item) -> list[Block]:
    """Return the events besides the decision, and the words of people and the tool."""
    said: list[Template | Plain] = []
    if item.revoked is not None and item.revoked.is_final:
        said.append(label(fit(item.revoked.reason, NOTE)))
    for one in item.observations[-1:]:
        finding: LiteralString = "Checked by {who}: " + FINDINGS[one.finding]
        said.append(template(finding, who=who(one.by)))
    if item.late_result is not None:
        said.append(label(late_report(item, item.late_result)[0]))
    return [*notes(said), *_words(item)]


def _words(item: Item) -> list[Block]:
    """Return other people's words in a box, so that they cannot pass for the bot's.

    Each text is on one line after its title, so that it cannot pass for another text.
    """
    found: list[tuple[LiteralString, str]] = []
    edit, decision = item.edit, item.decision
    if edit is not None:
        changed = edit_text(item, budget=_CHANGE)
        # On several lines, values could look like changes of other arguments.
        if "\n" in changed:
            changed = f"see Full details, {editor(edit)}"
        found.append(("Changed:", changed))
    if decision is not None and decision.verb in _REASONS:
        found.append((_REASONS[decision.verb], decision.text))
    found.extend(("Note:", one.note) for one in item.observations[-1:])
    if item.late_result is None and item.state is _S.FAILED and item.result is not None:
        has_started = item.result.has_started
        title: LiteralString = "Tool says:" if has_started else "Not started:"
        found.append((title, item.result.summary))
    found += handed_words(item)
    lines = [
        f"{title} {fit(' '.join(text.split()), NOTE)}"
        for title, text in found
        if text.strip()
    ]
    return [rich_text(box("\n".join(lines)))] if lines else []


def _rows(frame: Frame, items: Sequence[Item]) -> list[Block]:
    """Return a line for each of a few calls; of many, only for the failures."""
    if is_table(frame.approval):
        items = [one for one in items if _went_wrong(one)]
    lines = [_line(item) for item in items[:_ROWS]]
    more = len(items) - _ROWS
    lines += [f"… and {more} more: Full details"] if more > 0 else []
    return [rich_text(box("\n".join(lines)))] if lines else []


def _line(item: Item) -> str:
    title = fit(" ".join(call_title(item).split()), NOTE)
    said = f"{STATE_NAMES[item.state]}{', edited' if item.edit is not None else ''}"
    if item.state is _S.FAILED and item.result and item.result.summary:
        said += f": {fit(' '.join(item.result.summary.split()), NOTE)}"
    if item.state is _S.NOT_TAKEN:
        said += f": {NOT_TAKEN[item.handed.problem]}"
    if item.is_contradicted and item.late_result is not None:
        said += f". {late_report(item, item.late_result)[0]}"
    return f"{SIGNS[item.state]} {item.index + 1}. {title} ({said})"


def _went_wrong(item: Item) -> bool:
    return item.state in {_S.FAILED, _S.NOT_TAKEN} or item.is_contradicted
