"""Render each call of a card as blocks, and the footer about all of them."""

from __future__ import annotations

from typing import LiteralString
from urllib.parse import urlsplit

from keyturn.bot.blocks import (
    Block,
    bold,
    box,
    button_row,
    context,
    line,
    link,
    mention,
    notes,
    rich_text,
    section,
    text_run,
    titled,
)
from keyturn.bot.cards import buttons
from keyturn.bot.cards.frame import (
    Frame,
    TextBudget,
    is_table,
    shares,
    text_budget,
)
from keyturn.bot.cards.inquiries import MOST_TEXT as INQUIRIES
from keyturn.bot.cards.inquiries import ask_requester, in_words, inquiries
from keyturn.bot.cards.listing import (
    Listing,
    all_text,
    boxes_of,
    call_title,
    edit_text,
    fitted,
    state_text,
    state_title,
)
from keyturn.bot.cards.refs import calls_named, people, short_ref, when, who
from keyturn.bot.cards.states import (
    FINDINGS,
    MAX_ACT,
    TRIAGE_TITLE,
    because,
    handed_words,
    is_just_waiting,
    is_usual,
    needs,
    status_sentence,
    why,
)
from keyturn.bot.cards.table import MOST_TEXT as PRECEDENTS
from keyturn.bot.cards.table import is_remarkable, table_of
from keyturn.bot.cards.warnings import homoglyph_warnings, sql_warnings
from keyturn.bot.ids import Action
from keyturn.bot.text import (
    MIN_EXCERPT,
    Label,
    Plain,
    Template,
    excerpt,
    fit,
    joined,
    label,
    parted,
    reveal,
    template,
    untrusted,
)
from keyturn.gateway.approvals.editing import reading_text
from keyturn.gateway.approvals.evidence import original_text
from keyturn.gateway.approvals.invisible_characters import has_hidden
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.precedents import Past
from keyturn.gateway.approvals.quorum import asks_more
from keyturn.gateway.approvals.record import Approval, Item, is_collected
from keyturn.gateway.approvals.repeating import doubled
from keyturn.gateway.protocol.records import (
    Person,
    Result,
    Tier,
    Verb,
)

_ANSWERED = 1_000
"""Maximum characters of all answers on a card."""

_HEAD = 150
"""Characters of the line above each answer, with its author's name."""


def answered(frame: Frame) -> list[Block]:
    """Return the answers while calls are pending; Full details show them whole."""
    approval = frame.approval
    if not approval.answered or approval.state is not ApprovalState.OPEN:
        return []
    if approval.is_batch:
        # A batch has no room for them.
        sentence = template("💬 *People answered the agent before:* see Full details.")
        return [context(sentence)]
    share = _ANSWERED // len(approval.answered) - _HEAD
    head = template("💬 *Answered before*")
    return [block for one in approval.answered for block in in_words(head, one, share)]


_HIDDEN_CHARACTERS = template(
    "⚠️ *Hidden characters* are in it; they are shown as ⟦U+…⟧."
)
MOST_MIXED = 2
"""Maximum look-alike words that a card names."""
_MOST_TEXT = 2_600
"""Maximum characters of all calls on a card."""
_STATEMENT_CHARS = 700
_STATEMENT_CHARS_IN_BATCH = 300
_OBSERVATIONS = 2
_LABEL_CHARS = 40
"""Maximum characters of one note's label."""
_WORDS = {Verb.REJECT: "Reason:", Verb.RESPOND: "Answer to the agent:"}


def needs_full_view(approval: Approval, index: int) -> bool:
    """Return whether a call is too long for its card and approved in Full details."""
    return index not in whole_calls(approval)


def whole_calls(approval: Approval) -> frozenset[int]:
    """Return the calls that the card shows in full."""
    if is_table(approval):
        return table_of(approval).whole
    share = text_budget(approval)
    # The business state is part of the approved action, so a cut state needs the full
    # view as well.
    return frozenset(
        index
        for index, shown in listings(approval).items()
        if shown.is_complete and _is_state_whole(approval.items[index], share)
    )


def listings(approval: Approval) -> dict[int, Listing]:
    """Return the arguments of each call that has a row, as the card shows them.

    Short calls are whole, and the long ones share the remaining room.
    """
    items, share = approval.items, text_budget(approval)
    room = sum(share.row - _taken(item, share) for item in items)
    if any(one.past != Past() for one in approval.items):
        room -= PRECEDENTS
    if approval.answered:
        room -= _ANSWERED
    if approval.inquiries and not approval.is_batch:
        room -= INQUIRIES
    calls = [boxes_of(item, item.args) for item in items]
    rooms = shares(min(room, _MOST_TEXT), [sum(map(len, call)) for call in calls])
    return {
        item.index: fitted(call, budget=max(MIN_EXCERPT, most))
        for item, call, most in zip(items, calls, rooms, strict=True)
    }


def _taken(item: Item, share: TextBudget) -> int:
    """Return the number of characters that a call's title and notes take.

    No room is reserved for rare notes: that would shorten every call on every card for
    the sake of a few.
    """
    texts = len(item.observations[-_OBSERVATIONS:]) + 2 * (item.edit is not None)
    texts += any((item.triage, item.result, item.late_result, item.decision))
    texts += item.is_pending and bool(state_text(item))
    texts += len(handed_words(item))
    small = (item.original_args is not None) + 2 * (item.revoked is not None)
    taken = share.title + texts * (share.text + 2 * _LABEL_CHARS)
    taken += small * (share.note + _LABEL_CHARS)
    return taken + (len(item.link) + _LABEL_CHARS) * _has_link(item, share)


def call_row(frame: Frame, item: Item, shown: Listing) -> list[Block]:
    """Return the blocks of one call, from its description to its buttons."""
    is_batch = frame.approval.is_batch
    change = edit_text(item, budget=frame.budget.text)
    edit = [untrusted(f"✏️ {change}")] if change and "\n" not in change else []
    odd = content_warnings(item, 1 if is_batch else MOST_MIXED, frame.budget.note)
    blocks = [
        *title(frame, item, is_in_header=not is_batch),
        call_box(frame, item, shown),
        *(section(one) for one in edit if not is_batch),
        # One block: a card of several calls has no room for more.
        *notes([*(edit if is_batch else []), *odd, *_why(frame, item)]),
        *([] if is_batch else agent_statement(frame)),
        *_standing(frame, item, shown),
    ]
    is_whole = shown.is_complete and _is_state_whole(item, frame.budget)
    offered = buttons.decisions(frame, item, is_shown_whole=is_whole)
    return [*blocks, *button_row(offered)]


def agent_statement(frame: Frame) -> list[Block]:
    """Return the agent's text, marked as unverified, and earlier words of people."""
    text, words = frame.approval.says, [*answered(frame), *inquiries(frame)]
    if not text:
        return words
    is_batch = frame.approval.is_batch
    limit = _STATEMENT_CHARS_IN_BATCH if is_batch else _STATEMENT_CHARS
    title = "The agent's reason (not verified):"
    return [rich_text(*titled(title, excerpt(text, limit))), *words]


def title(frame: Frame, item: Item, *, is_in_header: bool = False) -> list[Block]:
    """Return the lines above a call: its description and the agent's description.

    Args:
        frame: of the card.
        item: the call.
        is_in_header: the card's header shows the description, up to its limit.
    """
    summary = call_title(item)
    is_doubled = any(item in group for group in doubled(frame.approval))
    number = f"{'⚠️ ' * is_doubled}{item.index + 1}"
    lines = [f"{number}. {summary}" if frame.approval.is_batch else summary]
    if is_in_header and len(reveal(summary)) <= MAX_ACT:
        lines = []
    if item.agent_description:
        lines.append(f"The agent says: {item.agent_description}")
    if not lines:
        return []
    cut = excerpt("\n".join(lines), frame.budget.title)
    return [section(untrusted(cut))]


def call_box(frame: Frame, item: Item, shown: Listing) -> Block:
    """Return the call itself, and the words of people and tools about it."""
    parts = [box(text) for text in shown.boxes]
    if _has_link(item, frame.budget):
        host = label(f"Open in {urlsplit(item.link).hostname}")
        parts.append(line(link(item.link, host)))
    if item.is_pending and state_text(item):
        parts += titled(f"{state_title(item)}:", _state(item, frame.budget))
    if item.triage is not None and item.is_pending and item.edit is None:
        # After an edit the rationale would be about a call that does not run.
        parts += _quoted(f"{TRIAGE_TITLE}:", item.triage.rationale, frame)
    change = edit_text(item, budget=frame.budget.text)
    if "\n" in change:
        parts += titled("Edited:", change)
    if item.decision is not None and item.decision.verb in _WORDS:
        parts += _quoted(_WORDS[item.decision.verb], item.decision.text, frame)
    parts += checked(frame, item)
    if item.late_result is not None:
        reported, text = late_report(item, item.late_result)
        parts += _quoted(f"{reported}:", text, frame)
    if item.result is not None and item.late_result is None:
        title = f"{result_title(item.result)}:"
        parts += _quoted(title, item.result.summary, frame)
    for title, text in handed_words(item):
        parts += _quoted(title, text, frame)
    return rich_text(*parts)


def checked(frame: Frame, item: Item) -> list[Block]:
    """Return people's findings about a call in doubt, as parts of rich text."""
    parts: list[Block] = []
    for one in item.observations[-_OBSERVATIONS:]:
        sentence = label(f" says: {FINDINGS[one.finding]}")
        parts.append(
            line(bold(label("Checked: ")), _person(one.by), text_run(sentence))
        )
        parts += _quoted("Note:", one.note, frame)
    return parts


def result_title(result: Result) -> LiteralString:
    """Return the title of a result: the tool's, or the agent's if it never started."""
    if result.has_started:
        return "Result (as the tool says)"
    return "Why it did not start (as the agent says)"


def late_report(item: Item, late: Result) -> tuple[str, str]:
    """Return title and text of a worker's report that came after people's finding."""
    result = "it ran" if late.ok else "it failed"
    against = ", unlike what people found" if item.is_contradicted else ""
    title = f"Its worker reported later that {result}{against}"
    return title, late.summary or result


def _has_link(item: Item, budget: TextBudget) -> bool:
    """Return whether a card has room for the call's link."""
    return 0 < len(item.link) <= budget.text


def _state(item: Item, budget: TextBudget) -> str:
    return excerpt(state_text(item), budget.text)


def _is_state_whole(item: Item, budget: TextBudget) -> bool:
    return _state(item, budget) == reveal(state_text(item))


def _quoted(title: str, text: str, frame: Frame) -> list[Block]:
    if not text or frame.is_crowded:
        return []
    return titled(title, excerpt(text, frame.budget.text))


def _person(person: Person) -> Block:
    ref = who(person).text
    # Rich text accepts only well-formed user ids, and Slack refuses the message
    # otherwise; `who` has checked the form.
    return mention(person.user) if ref.startswith("<@") else text_run(label("somebody"))


def content_warnings(item: Item, most: int, note: int) -> list[Template | Plain]:
    """Return warnings of a call's own text, with ``most`` look-alike words.

    Each of these words is cut to ``note`` characters.
    """
    text = all_text(item)
    warnings = sql_warnings(item)
    if has_hidden(text):
        warnings.append(_HIDDEN_CHARACTERS)
    return [
        *([joined(" ", warnings)] if warnings else []),
        *(
            untrusted(f"⚠️ Look-alike letters: {fit(each, note)}")
            for each in homoglyph_warnings(text)[:most]
        ),
    ]


def _why(frame: Frame, item: Item) -> list[Template | Plain]:
    """Explain a call's requirements, if the explanation is informative."""
    if item.cover is not None:
        by = template(
            "Allowed by the standing approval {id}, given by {who}",
            id=short_ref(item.cover.approval),
            who=people(item.cover.given_by),
        )
        return [by]
    text, raised = why(item), _raised(frame, item)
    count = len(item.evidence)
    named = template("📎 Sources of the agent in *Full details*: {n}.", n=count)
    says_more = raised is not None or not is_usual(item)
    return [
        *([because(raised or needs(item), text, frame.budget.note)] * says_more),
        *_revoked(frame, item),
        *_spelling(frame, item),
        *([named] if count else []),
    ]


def _raised(frame: Frame, item: Item) -> Template | None:
    """Describe a requirement that is stricter now than when the call was opened."""
    first = item.floor
    if first is None or not item.is_pending or frame.approval.is_batch:
        return None  # a row of a batch has room only for requirements and reasons
    is_same = item.tier is first.tier
    if is_same and not asks_more(item.requirement, first.requirement):
        return None
    if item.tier is Tier.DENY:
        return needs(item)
    return template("⬆ *Needs more now than when it was asked*")


def _spelling(frame: Frame, item: Item) -> list[Plain]:
    """Show the model's spelling of arguments that the tool reads differently.

    It is about the requested arguments, also after an edit.
    """
    if item.original_args is None or frame.is_crowded:
        return []
    text = original_text(item.original_args, item.requested_args, item.redact)
    wrote = fit(text, frame.budget.note)
    return [untrusted(f"The model wrote: {wrote}")] if text else []


def _revoked(frame: Frame, item: Item) -> list[Template | Label | Plain]:
    """Explain why an approval was revoked, or why the call ended by itself."""
    revoked = item.revoked
    if revoked is None or not (item.is_pending or revoked.is_final):
        return []
    event: LiteralString = "↩ *The approval was taken back* {at}."
    if revoked.is_restored:
        event = "⚠️ *Restored from an older copy* {at}."
    taken_back = template(event, at=when(revoked.at_ms))
    why = label(fit(revoked.reason, frame.budget.note))
    reading = fit(reading_text(item), frame.budget.note)
    says = [untrusted(f"The agent says: {reading}")] if reading_text(item) else []
    # The state of a call that ended says when.
    return [*([taken_back] if item.is_pending else []), why, *says]


def call_state(frame: Frame) -> tuple[str, Template]:
    """Return the state of the only call of a card: its sign, and the words."""
    approval = frame.approval
    return parted(status_sentence(approval, approval.items[0], now_ms=frame.now_ms))


def _standing(frame: Frame, item: Item, shown: Listing) -> list[Block]:
    """Return the visible share of a call and, for one of several, its state.

    For a call that waits for one person, as its card states, there is nothing to add.
    """
    approval, lines = frame.approval, list[Template]()
    waits = frame.can_decide(item) and is_just_waiting(approval, item)
    if approval.is_batch and not waits:
        lines.append(status_sentence(approval, item, now_ms=frame.now_ms))
    if not shown.is_complete:
        may_approve = frame.can_decide(item) and Verb.APPROVE in item.allow
        end: LiteralString = " and approve." if may_approve else "."
        head: LiteralString = "Shortened. Open *Full details* to see everything"
        lines.append(template(head + end))
    return [section(joined("\n", lines))] if lines else []


def decided_alone(approval: Approval) -> frozenset[int]:
    """Return the pending calls that a decision on the whole card cannot approve.

    These are calls that the card cannot show whole, that need a reason to be approved,
    or that are escalated: an edit may have raised the tier of one call of a batch. In a
    table these are also calls with notes that do not fit in a row.
    """
    # Once for all calls: a table is made as a whole.
    whole, is_row = whole_calls(approval), is_table(approval)
    return frozenset(
        item.index
        for item in approval.items
        if item.is_pending
        and (
            Verb.APPROVE in item.requires_reason
            or Verb.APPROVE not in item.allow
            or item.tier is Tier.ESCALATE
            or item.index not in whole
            or (is_row and is_remarkable(item))
        )
    )


def batch_footer(frame: Frame) -> list[Block]:
    """Return the blocks about the batch as a whole; none for a single call."""
    approval = frame.approval
    if not approval.is_batch:
        return []
    is_row = is_table(approval)
    waiting = [item for item in approval.items if item.is_pending]
    alone = decided_alone(approval)
    blocks: list[Block] = []
    offered: list[Block] = []
    if len(waiting) > (0 if is_row else 1) and not frame.is_late:
        # All or none: if "Approve all" left one out, people would assume that they had
        # approved it.
        if not alone:
            offered.append(buttons.approve_all(frame))
        else:
            blocks.append(each_alone(alone))
        if is_row and len(alone) < len(waiting):
            offered.append(frame.button(None, Action.CHOOSE))
        if is_row and all(Verb.REJECT in item.allow for item in waiting):
            offered.append(frame.button(None, Action.REJECT_ALL))
    rare = ask_requester(frame, None) + buttons.time_buttons(frame, is_in_full=False)
    rare += buttons.snooze(frame)
    if is_row:
        offered.append(buttons.open_call(frame))
    # On a collected card each call has its own time and its own thread; *Open a call…*
    # shows both.
    offered += buttons.menu([] if is_collected(approval) else rare)
    return [*blocks, *button_row(offered)]


def each_alone(alone: frozenset[int]) -> Block:
    """Return the line that names the calls of `decided_alone`."""
    return context(label(f"Decide these one at a time: {calls_named(alone).text}."))
