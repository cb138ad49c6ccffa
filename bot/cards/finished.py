"""Render a card whose calls have all ended: three lines, and the rest in Full details.

The header says what was asked for, the second line who decided, what happened and when,
the last line who asked. Between them stands what people changed and why, or why it
failed, in short; Full details have it whole, with the arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import LiteralString

from keyturn.bot.blocks import Block, box, context, header, rich_text, section
from keyturn.bot.cards import buttons
from keyturn.bot.cards.call_rows import FINDINGS, late_report
from keyturn.bot.cards.diff import diff
from keyturn.bot.cards.frame import Frame, is_table
from keyturn.bot.cards.listing import call_title
from keyturn.bot.cards.noticed import totals
from keyturn.bot.cards.refs import asked_by, people, short_ref, when, who
from keyturn.bot.cards.spot_check import spot_checks
from keyturn.bot.cards.states import (
    SEVERAL,
    SIGNS,
    STATE_NAMES,
    approvers,
    batch_title,
    header_text,
    is_own_edit,
    status_sentence,
)
from keyturn.bot.text import (
    Plain,
    Template,
    fit,
    joined,
    label,
    parted,
    template,
)
from keyturn.gateway.approvals.lifecycle import UNEXECUTED
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.states import ItemState
from keyturn.gateway.protocol.verbs import Verb

_S = ItemState
ENDED = UNEXECUTED | {_S.EXECUTED, _S.FAILED}
"""States in which nobody has anything to do; a failure is one as well."""

_BY_URGENCY = (
    _S.FAILED,
    *sorted(UNEXECUTED - {_S.REJECTED, _S.ANSWERED}),
    _S.EXECUTED,
    _S.REJECTED,
    _S.ANSWERED,
)
"""The order in which a batch counts its calls: what went wrong is named first."""

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
    """Return whether no call of a card needs anybody any more.

    A call in doubt needs a person, and so does a spot check, for which the arguments
    have to be seen.
    """
    return all(
        item.state in ENDED and not item.is_to_be_checked for item in approval.items
    )


def finished(frame: Frame) -> list[Block]:
    """Return the blocks of a card on which nothing can be decided any more."""
    blocks = _of_batch(frame) if frame.approval.is_batch else _of_one(frame)
    return [*blocks, *spot_checks(frame)]


def _of_one(frame: Frame) -> list[Block]:
    approval, item = frame.approval, frame.approval.items[0]
    # The header has its sign.
    _, status = parted(status_sentence(approval, item, now_ms=frame.now_ms))
    said, words = _remarks(item), _words(item)
    return [
        header(header_text(approval, now_ms=frame.now_ms)),
        section(status, accessory=buttons.view_all(frame, item)),
        *([context(*said)] if said else []),
        *([_box(words)] if words else []),
        _foot(frame),
    ]


def _foot(frame: Frame) -> Block:
    ids = template("{id}", id=short_ref(frame.approval.id))
    return context(*asked_by(frame), ids)


def _remarks(item: Item) -> list[Template | Plain]:
    """Return what happened beside the decision, in words of ours."""
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
    """Return what people and the tool wrote, and what people changed, with titles."""
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
    """Return the words of strangers in a box, where none of them passes for ours.

    Each text stands on one line behind its title, so that it passes for no other one.
    """
    width = max(len(title) for title, _ in words)
    lines = [
        f"{title:<{width}} {fit(' '.join(text.split()), _QUOTE)}"
        for title, text in words
    ]
    return rich_text(box("\n".join(lines)))


def _changed(item: Item) -> str:
    lines = diff(item, budget=_CHANGE).splitlines()
    # One line alone: values on several could read as changes of other arguments.
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
    return [
        header(_title(approval)),
        section(joined(" ", parts), accessory=view),
        *_rows(frame),
        *totals(frame),
        _foot(frame),
    ]


def _title(approval: Approval) -> Plain:
    states = {item.state for item in approval.items}
    sign = SEVERAL
    if _S.FAILED in states or len(states) == 1:
        sign = SIGNS[_S.FAILED if _S.FAILED in states else min(states)]
    return batch_title(approval, sign)


def _counts(approval: Approval) -> Template:
    """Return "*1 failed*, 54 done, 1 rejected. 2 were edited."."""
    counts = Counter(item.state for item in approval.items)
    named = [
        joined(" ", [template("{n}", n=counts[state]), _word(state)])
        for state in _BY_URGENCY
        if counts[state]
    ]
    sentence = joined("", [joined(", ", named), template(".")])
    edited = sum(item.edit is not None for item in approval.items)
    if edited:
        return joined(" ", [sentence, template("Edited: {n}.", n=edited)])
    return sentence


def _word(state: ItemState) -> Template:
    return template("*failed*" if state is _S.FAILED else STATE_NAMES[state])


def _deciders(approval: Approval) -> list[Template]:
    found: dict[tuple[str, str], Person] = {}
    for item in approval.items:
        if item.state not in _UNDECIDED:
            found |= {(one.team, one.user): one for one in approvers(item)}
    if not found:
        return []
    named = people([*found.values()])
    return [joined("", [template("Decided by "), named, template(".")])]


def _rows(frame: Frame) -> list[Block]:
    """Return a line for each of a few calls, or for those that went wrong of many."""
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
    """Return calls with those that went wrong first, else in their order."""
    return sorted(
        items,
        key=lambda item: (
            item.state is not _S.FAILED and not item.is_contradicted,
            item.index,
        ),
    )
