"""Render the card on which an agent asks people questions.

The questions are the agent's words: they are in plain text or boxes, with visible marks
for hidden characters. The card has all of them; the form behind Answer repeats them.
"""

from __future__ import annotations

from typing import LiteralString

from keyturn.bot.blocks import (
    TEXT_BUDGET,
    Block,
    Message,
    actions,
    box,
    context,
    header,
    rich_text,
    section,
)
from keyturn.bot.cards.approval import metadata
from keyturn.bot.cards.buttons import question_buttons
from keyturn.bot.cards.call_rows import agent_statement
from keyturn.bot.cards.fallbacks import card_fallback, event_fallback
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.listing import is_misleading
from keyturn.bot.cards.mentions import mentions_for, reached
from keyturn.bot.cards.refs import asked_by, short_ref, when, who
from keyturn.bot.text import (
    Plain,
    Template,
    Untrusted,
    chunks,
    excerpt,
    fit,
    joined,
    label,
    reveal,
    template,
    untrusted,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.questions import NO_ANSWER, Question, QuestionType
from keyturn.gateway.protocol.records import ItemState

_MAX_TEXT = 3_000
_SECTION = 2_800
_ENDED = "ended"
_HOW = "The agent's operator can answer in the agent's own program."


def question_message(event: Event) -> Message | None:
    """Return the message about another library's question, or about its end."""
    is_end = event.data.get("ends") == _ENDED
    if event.name is EventName.RUN_UNANSWERED:
        return _unanswered(is_end=is_end)
    text = event.data.get("text")
    if not text:
        return None
    until_ms = int(event.data.get("until_ms") or 0)
    return _unanswerable(text, until_ms=until_ms, is_end=is_end)


def _unanswerable(text: str, *, until_ms: int, is_end: bool) -> Message:
    """Return the message about a question, whose text is untrusted."""
    head = template("❓ The agent asks something that cannot be answered in Slack:")
    parts = chunks(excerpt(text, _MAX_TEXT).text, _SECTION)
    ends = (
        template("Without an answer by {at}, the run ends.", at=when(until_ms))
        if is_end
        else template(
            "Without an answer by {at}, the agent continues.",
            at=when(until_ms),
        )
    )
    note = context(joined(" ", [template(_HOW), ends]))
    blocks = (section(head), *(section(untrusted(one)) for one in parts), note)
    return Message(blocks, "The agent asks something that cannot be answered in Slack.")


def _unanswered(*, is_end: bool) -> Message:
    if is_end:
        sentence = template(
            "⌛ The run ended: nobody answered the agent's question in time. Calls "
            "that had not run will not run. To continue, write here again."
        )
        return Message(
            (section(sentence),), "Nobody answered in time, so the run ended."
        )
    sentence = template(
        "⌛ Nobody answered the agent's question in time. The agent was told so, and "
        "what it asked about did not run."
    )
    return Message(
        (section(sentence),), "Nobody answered the agent's question in time."
    )


_HEADER = 140
_AROUND = 2_700
"""Maximum characters of the text around the questions."""
_DEFAULT = 75
"""Characters of a default: hidden characters make it longer than its source."""
_PER_QUESTION = 70 + _DEFAULT
"""Characters of labels and the default for each question."""
_IN_THREAD = 1_500

_S = ItemState
_SIGNS: dict[ItemState, LiteralString] = {
    _S.PENDING: "❓",
    _S.ANSWERED: "💬",
    _S.REJECTED: "🚫",
    _S.EXPIRED: "⌛",
    _S.SUPERSEDED: "⏩",
    _S.WITHDRAWN: "↩",
}
_STANDS: dict[ItemState, LiteralString] = {
    _S.ANSWERED: "💬 *Answered* by {who}, {at}.",
    _S.REJECTED: "🚫 *Skipped* by {who}, {at}. The agent is told.",
    _S.EXPIRED: "⌛ *Nobody answered in time* ({at}). The agent is told.",
    _S.SUPERSEDED: "⏩ *Cancelled* {at}: a newer message came. No answer is needed.",
    _S.WITHDRAWN: "↩ *Withdrawn* by the agent, {at}. No answer is needed.",
}
_HINTS: dict[QuestionType, LiteralString] = {
    QuestionType.MULTIPLE_CHOICE: "Choose one:",
    QuestionType.MULTI_SELECT: "Choose any:",
}


def question_card(frame: Frame) -> Message:
    """Return the current card of the questions of a call."""
    approval = frame.approval
    item, asked = approval.items[0], approval.items[0].questions
    blocks = [
        header(_title(item)),
        context(*asked_by(frame), template("{id}", id=short_ref(approval.id))),
        *_whom(frame),
        *reached(frame),
        *(agent_statement(frame) if item.is_pending else []),
        *(
            block
            for number, question in enumerate(asked)
            for block in _question(item, number, question)
        ),
        *_warning(item),
        section(_standing(frame, item)),
    ]
    offered = question_buttons(frame, item)
    if offered:
        blocks.append(actions(*offered))
    return Message(tuple(blocks), card_fallback(approval), metadata(approval))


def question_note(event: Event, approval: Approval) -> Message | None:
    """Return the line under the card about the end of its questions, or None.

    The card itself shows answers and their authors.
    """
    item = approval.items[0]
    is_answered = item.state is _S.ANSWERED
    text = item.decision.text if item.decision and not is_answered else ""
    if event.item != item.id or item.is_pending or item.state is _S.SUPERSEDED:
        return None
    # Without the name, which would subscribe that person to the thread.
    sentence = template(_NOTES[item.state])
    quotes = [rich_text(box(excerpt(text, _IN_THREAD).text))] if text else []
    return Message((section(sentence), *quotes), event_fallback(event, item))


_NOTES: dict[ItemState, LiteralString] = {
    _S.ANSWERED: "💬 Answered.",
    _S.REJECTED: "🚫 Skipped. The agent is told.",
    _S.EXPIRED: "⌛ Nobody answered in time. The agent is told.",
    _S.WITHDRAWN: "↩ No answer is needed any more.",
}


def _title(item: Item) -> Untrusted:
    asked, sign = item.questions, _SIGNS.get(item.state, "❓")
    count = len(asked)
    if count > 1:
        verb = "asks" if item.is_pending else "asked"
        return untrusted(f"{sign} The agent {verb} {count} questions")
    return untrusted(f"{sign} {fit(asked[0].question, _HEADER)}")


def _whom(frame: Frame) -> list[Block]:
    if frame.is_late or not frame.approval.items[0].is_pending:
        return []
    whom = mentions_for(frame.approval)
    if not whom.roles:
        return []
    sentence = whom.before(template("please answer:"))
    return [section(sentence)]


def _question(item: Item, number: int, question: Question) -> list[Block]:
    asked, answers = item.questions, item.decision.answers if item.decision else ()
    budget = (TEXT_BUDGET - _AROUND) // len(asked) - _PER_QUESTION
    share = max(_PER_QUESTION, budget // 2)
    parts: list[Block] = []
    is_in_header = len(asked) == 1 and len(reveal(question.question)) <= _HEADER
    if not is_in_header:
        nth = f"{number + 1}. " if len(asked) > 1 else ""
        parts.append(section(untrusted(nth + excerpt(question.question, share).text)))
    if answers:
        answer = answers[number] or NO_ANSWER
        parts.append(rich_text(box(excerpt(answer, share).text)))
        return parts
    if not item.is_pending:
        return parts
    notes: list[Plain] = [] if question.required else [label("Optional.")]
    if question.choices:
        offered = " · ".join([*question.choices, "Other"])
        notes.append(untrusted(f"{_HINTS[question.type]} {fit(offered, share)}"))
    if question.default:
        words = fit(question.default, _DEFAULT)
        notes.append(untrusted(f"Without an answer the agent continues with: {words}"))
    if notes:
        parts.append(context(*notes))
    return parts


def _warning(item: Item) -> list[Block]:
    if not is_misleading(item):
        return []
    odd = template("⚠️ *Hidden or look-alike characters* are in it, shown as ⟦U+…⟧.")
    return [context(odd)]


def _standing(frame: Frame, item: Item) -> Template:
    if item.is_pending:
        at = when(frame.approval.expires_at_ms)
        if frame.is_late:
            return template("⌛ *The time to answer ended* {at}.", at=at)
        return template(
            "⏳ *Waiting for an answer* until {at}; then the agent continues without "
            "it.",
            at=at,
        )
    at, by = when(item.changed_at_ms), item.decision
    if by is None:
        return template(_STANDS.get(item.state, _STANDS[_S.WITHDRAWN]), at=at)
    # An unanswered question is withdrawn by the person who asked the agent.
    state = _S.REJECTED if item.state is _S.WITHDRAWN else item.state
    return template(_STANDS[state], who=who(by.by), at=at)
