"""Render each tool call of a card as blocks."""

from __future__ import annotations

from typing import LiteralString
from urllib.parse import urlsplit

from twokey.bot.blocks import (
    actions,
    bold,
    box,
    context,
    line,
    link,
    mention,
    rich_text,
    section,
    text_run,
)
from twokey.bot.cards import buttons
from twokey.bot.cards.answered import MOST_TEXT as ANSWERED
from twokey.bot.cards.answered import answered
from twokey.bot.cards.diff import diff, state_text, state_title
from twokey.bot.cards.frame import (
    MAX_ROWS,
    MIN_EXCERPT,
    Frame,
    TextBudget,
    is_table,
    rows_of,
    text_budget,
)
from twokey.bot.cards.inquiries import MOST_TEXT as INQUIRIES
from twokey.bot.cards.inquiries import inquiries
from twokey.bot.cards.listing import Listing, all_text, call_title, listing_of
from twokey.bot.cards.needs import because, is_usual, needs, why
from twokey.bot.cards.precedents import MOST_TEXT
from twokey.bot.cards.refs import hash_ref, when, who
from twokey.bot.cards.sql_warnings import sql_warnings
from twokey.bot.cards.states import (
    MAX_ACT,
    TRIAGE_TITLE,
    is_just_waiting,
    status_sentence,
)
from twokey.bot.cards.table import table_of
from twokey.bot.cards.votes import counted_votes
from twokey.bot.homoglyphs import homoglyph_warnings
from twokey.bot.objects import Block
from twokey.bot.text import Excerpt, excerpt, fit, reveal
from twokey.bot.text_types import (
    Label,
    Plain,
    Template,
    joined,
    label,
    parted,
    template,
    untrusted,
)
from twokey.gateway.approvals.evidence import original_text
from twokey.gateway.approvals.invisible_characters import has_hidden
from twokey.gateway.approvals.precedents import Past
from twokey.gateway.approvals.quorum import asks_more, tally
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.records import Person, Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Finding, Verb

_MAX_MIXED = 2
_STATEMENT_CHARS = 700
_STATEMENT_CHARS_IN_BATCH = 300
_OBSERVATIONS = 2
_LABEL_CHARS = 40
"""Characters that the label of one note takes, at most."""
FINDINGS = {
    Finding.EXECUTED: "it took effect",
    Finding.RERUN: "run it again",
    Finding.SKIP: "leave it",
}
"""What a person says of a call in doubt."""

_REVOKED: LiteralString = "↩ *The approval was taken back* {at}:"
_ENDED_BECAUSE: LiteralString = "↩ *It was withdrawn* {at}:"
_RESTORED: LiteralString = "⚠️ *Restored from an older copy* {at}:"


def needs_full_view(approval: Approval, index: int) -> bool:
    """Return whether a call is too long for its card and approved in Full details."""
    if is_table(approval):
        return index not in table_of(approval).whole
    item = approval.items[index]
    has_row = any(each.index == index for each in rows_of(approval))
    left = call_budget(approval, item)
    shown = listing_of(item, budget=left)
    # The business state is part of what is approved, so a state that is cut needs the
    # full view as well.
    is_whole = shown.is_complete and _state(item, text_budget(approval)).complete
    return not (has_row and is_whole)


def call_budget(approval: Approval, item: Item) -> int:
    """Return how many characters a call's arguments may take.

    Long notes on a call reduce the budget of its own arguments, not of other calls'.
    """
    share = text_budget(approval)
    # Rare notes are not reserved for in advance, which would shorten every call on
    # every card for what few calls have.
    taken = len(item.observations[-_OBSERVATIONS:]) * (share.text + _LABEL_CHARS)
    if item.original_args is not None:
        taken += share.note + _LABEL_CHARS
    if item.late_result is not None:
        taken += share.text + 2 * _LABEL_CHARS
    if item.revoked is not None:
        taken += share.note + 2 * _LABEL_CHARS
    if _has_link(item, share):
        taken += len(item.link) + _LABEL_CHARS
    if item.is_pending and state_text(item):
        taken += share.text + 2 * _LABEL_CHARS
    if any(one.past != Past() for one in approval.items):
        taken += MOST_TEXT // min(len(approval.items), MAX_ROWS)
    if approval.answered:
        taken += ANSWERED // min(len(approval.items), MAX_ROWS)
    if approval.inquiries and not approval.is_batch:
        taken += INQUIRIES
    return max(MIN_EXCERPT, share.call - taken)


def call_row(frame: Frame, item: Item) -> list[Block]:
    """Return the blocks of one call, from what it is to what may be said of it."""
    budget = call_budget(frame.approval, item)
    shown = listing_of(item, budget=budget)
    name = f"{item.index}"
    blocks = [
        *title(frame, item, is_in_header=not frame.approval.is_batch),
        call_box(frame, item, shown),
        *_warning(frame, item),
        *_why(frame, item),
        *([] if frame.approval.is_batch else agent_statement(frame)),
        *_standing(frame, item, shown),
    ]
    is_whole = shown.is_complete and _state(item, frame.budget).complete
    offered = buttons.decisions(frame, item, is_shown_whole=is_whole)
    if offered:
        blocks.append(actions(*offered, block_id=frame.block_id(f"{name}.actions")))
    return blocks


def agent_statement(frame: Frame) -> list[Block]:
    """Return the agent's text, marked as unverified, and what people said before."""
    text, words = frame.approval.says, [*answered(frame), *inquiries(frame)]
    if not text:
        return words
    is_batch = frame.approval.is_batch
    limit = _STATEMENT_CHARS_IN_BATCH if is_batch else _STATEMENT_CHARS
    cut = excerpt(text, limit).text
    named = line(bold(label("Agent says (unverified):")))
    says = rich_text(named, box(cut), block_id=frame.block_id("says"))
    return [says, *words]


def title(frame: Frame, item: Item, *, is_in_header: bool = False) -> list[Block]:
    """Return what stands above a call: what it does, and what the agent says it does.

    Args:
        frame: of the card.
        item: the call.
        is_in_header: the card's header says what it does, as far as it fits there.
    """
    summary = call_title(item)
    lines = [f"{item.index + 1}. {summary}" if frame.approval.is_batch else summary]
    if is_in_header and len(reveal(summary)) <= MAX_ACT:
        lines = []
    if item.agent_description:
        lines.append(f"The agent says: {item.agent_description}")
    if not lines:
        return []
    cut = excerpt("\n".join(lines), frame.budget.title).text
    return [section(untrusted(cut), block_id=frame.block_id(f"{item.index}.title"))]


def call_box(frame: Frame, item: Item, shown: Listing) -> Block:
    """Return the call itself, and the words of people and tools about it."""
    parts = [box(text) for text in shown.boxes]
    if _has_link(item, frame.budget):
        host = label(f"Open in {urlsplit(item.link).hostname}")
        parts.append(line(link(item.link, host)))
    if item.is_pending and state_text(item):
        parts += [line(bold(label(f"{state_title(item)}:")))]
        parts += [box(_state(item, frame.budget).text)]
    if item.triage is not None and item.is_pending and item.edit is None:
        # After an edit its words would be about what does not run.
        parts += _quoted(f"{TRIAGE_TITLE}:", item.triage.rationale, frame)
    if item.edit is not None:
        parts.append(
            line(bold(label("Edited by ")), _person(item.edit.by), text_run(label(":")))
        )
        parts.append(box(diff(item, budget=frame.budget.change)))
        parts += _quoted("Why:", item.edit.reason, frame)
    if item.decision is not None and item.decision.verb is Verb.REJECT:
        parts += _quoted("Reason:", item.decision.text, frame)
    if item.decision is not None and item.decision.verb is Verb.RESPOND:
        parts += _quoted("Answer to the agent:", item.decision.text, frame)
    parts += checked(frame, item)
    if item.late_result is not None:
        reported, text = late_report(item, item.late_result)
        parts += _quoted(f"{reported}:", text, frame)
    if item.result is not None and item.late_result is None:
        parts += _quoted("Result (as the tool says):", item.result.summary, frame)
    return rich_text(*parts, block_id=frame.block_id(f"{item.index}.call"))


def checked(frame: Frame, item: Item) -> list[Block]:
    """Return what people found out about a call in doubt, as parts of rich text."""
    parts: list[Block] = []
    for one in item.observations[-_OBSERVATIONS:]:
        sentence = label(f" says: {FINDINGS[one.finding]}")
        parts.append(
            line(bold(label("Checked: ")), _person(one.by), text_run(sentence))
        )
        parts += _quoted("Note:", one.note, frame)
    return parts


def late_report(item: Item, late: Result) -> tuple[str, str]:
    """Return a title and a text for what a worker reported after people did."""
    result = "it ran" if late.ok else "it failed"
    against = ", unlike what people found" if item.is_contradicted else ""
    title = f"Its worker reported later that {result}{against}"
    return title, late.summary or result


def _has_link(item: Item, budget: TextBudget) -> bool:
    """Return whether a card has room for the call's link."""
    return 0 < len(item.link) <= budget.text


def _state(item: Item, budget: TextBudget) -> Excerpt:
    return excerpt(state_text(item), budget.text)


def _quoted(title: str, text: str, frame: Frame) -> list[Block]:
    if not text:
        return []
    cut = excerpt(text, frame.budget.text).text
    return [line(bold(label(title))), box(cut)]


def _person(person: Person) -> Block:
    ref = who(person).text
    # Rich text takes a user id as such and is refused by Slack for one that is not of
    # its form; `who` has checked the form.
    return mention(person.user) if ref.startswith("<@") else text_run(label("somebody"))


def _warning(frame: Frame, item: Item) -> list[Block]:
    text = all_text(item)
    mixed = homoglyph_warnings(text)
    warnings = sql_warnings(item)
    if has_hidden(text):
        warnings.append(
            template("⚠️ *Hidden characters* are in this call, shown as ⟦U+…⟧.")
        )
    if mixed:
        warnings.append(template("⚠️ *Look-alike letters* are in it:"))
    if not warnings:
        return []
    most = 1 if frame.approval.is_batch else _MAX_MIXED
    names = [untrusted(fit(each, frame.budget.note)) for each in mixed[:most]]
    return [
        context(
            joined(" ", warnings), *names, block_id=frame.block_id(f"{item.index}.odd")
        )
    ]


def _why(frame: Frame, item: Item) -> list[Block]:
    """Say why a call needs what it needs; nothing where that says nothing."""
    text, raised = why(item), _raised(frame, item)
    says_more = raised is not None or not is_usual(item)
    parts = [
        *([because(raised or needs(item), text)] if says_more else []),
        *([untrusted(fit(text, frame.budget.note))] if text else []),
        *_revoked(frame, item),
        *_spelling(frame, item),
    ]
    name = frame.block_id(f"{item.index}.why")
    return [context(*parts, block_id=name)] if parts else []


def _raised(frame: Frame, item: Item) -> Template | None:
    """Say that a call that waits needs more now than when it was opened."""
    first = item.floor
    if first is None or not item.is_pending or frame.approval.is_batch:
        return None  # a row of a batch has room for what it needs and reasons only
    if item.tier is first.tier and not asks_more(item.requirement, first.requirement):
        return None
    if item.tier is Tier.DENY:
        return needs(item)
    need = counted_votes(item).need
    if need > tally(first.requirement, (), item.action_hash).need:
        return template("⬆ *Needs {n} people now*", n=need)
    return template("⬆ *Needs more now than when it was asked*")


def _spelling(frame: Frame, item: Item) -> list[Plain]:
    """Say what the model wrote where the tool reads it as something else.

    It is about what was asked for first, whatever was edited since.
    """
    if item.original_args is None:
        return []
    text = original_text(item.original_args, item.requested_args, item.redact)
    wrote = untrusted(fit(text, frame.budget.note)) if text else None
    return [label("The model wrote:"), wrote] if wrote else []


def _revoked(frame: Frame, item: Item) -> list[Template | Label]:
    """Say why an approval does not count any more, or why the call ended by itself."""
    revoked = item.revoked
    if revoked is None or not (item.is_pending or revoked.is_final):
        return []
    head = _ENDED_BECAUSE if item.state is ItemState.WITHDRAWN else _REVOKED
    if revoked.is_restored and item.is_pending:
        head = _RESTORED
    sentence = template(head, at=when(revoked.at_ms))
    return [sentence, label(fit(revoked.reason, frame.budget.note))]


def state(frame: Frame) -> Block:
    """Return where a card's one call stands, below its header, which has the sign."""
    item = frame.approval.items[0]
    status = status_sentence(frame.approval, item, now_ms=frame.now_ms)
    return section(parted(status)[1], block_id=frame.block_id(f"{item.index}.state"))


def _standing(frame: Frame, item: Item, shown: Listing) -> list[Block]:
    """Return how much of a call is shown and, of several, where this one stands.

    A call that waits for one person, as its card says, has nothing to add.
    """
    approval, lines = frame.approval, list[Template]()
    waits = frame.can_decide(item) and is_just_waiting(approval, item)
    if approval.is_batch and not waits:
        lines.append(status_sentence(approval, item, now_ms=frame.now_ms))
    if not shown.is_complete:
        part = template(
            "Showing {shown} of {total} characters (sha256 {hash}); the rest is in "
            "Full details.",
            shown=shown.shown,
            total=shown.total,
            hash=hash_ref(item.action_hash),
        )
        lines.append(part)
    name = f"{item.index}.state" if approval.is_batch else f"{item.index}.part"
    return (
        [section(joined("\n", lines), block_id=frame.block_id(name))] if lines else []
    )
