"""Messages about agent questions that cannot be answered in Slack."""

from __future__ import annotations

from twokey.bot.blocks import Message, context, section
from twokey.bot.cards.chunks import chunks
from twokey.bot.cards.refs import when
from twokey.bot.text import excerpt
from twokey.bot.text_types import joined, template, untrusted
from twokey.gateway.approvals.events import Event, EventName

_MAX_TEXT = 3_000
_SECTION = 2_800
_ENDED = "ended"
_HOW = "The operator of the agent can answer it in the agent's own program."


def question_message(event: Event) -> Message | None:
    """Return what is said when another library asks, or its question has ended."""
    is_end = event.data.get("ends") == _ENDED
    if event.name is EventName.RUN_UNANSWERED:
        return _unanswered(is_end=is_end)
    text = event.data.get("text")
    if not text:
        return None
    until_ms = int(event.data.get("until_ms") or 0)
    return _question(text, until_ms=until_ms, is_end=is_end)


def _question(text: str, *, until_ms: int, is_end: bool) -> Message:
    """Return the message about a question, whose text is untrusted."""
    head = template("❓ The agent asks something that cannot be answered in Slack:")
    parts = chunks(excerpt(text, _MAX_TEXT).text, _SECTION)
    ends = (
        template("If nobody does until {at}, the run ends.", at=when(until_ms))
        if is_end
        else template(
            "If nobody does until {at}, the agent is told so and goes on.",
            at=when(until_ms),
        )
    )
    note = context(joined(" ", [template(_HOW), ends]))
    blocks = (section(head), *(section(untrusted(one)) for one in parts), note)
    return Message(blocks, "The agent asks something that cannot be answered in Slack.")


def _unanswered(*, is_end: bool) -> Message:
    if is_end:
        sentence = template(
            "⌛ Nobody answered the agent's question in time, so the run ended there. "
            "Calls that had not run yet will not run. Write here again to go on: the "
            "agent is told then."
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
