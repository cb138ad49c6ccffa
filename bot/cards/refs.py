"""Format people, times and hashes as Slack mrkdwn, from ids and numbers only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import LiteralString

from keyturn.bot.cards.frame import Frame
from keyturn.bot.text import (
    Plain,
    Ref,
    Template,
    channel,
    code,
    fit,
    joined,
    link,
    moment,
    template,
    untrusted,
    user,
)
from keyturn.gateway.approvals.gestures import index_ranges
from keyturn.gateway.approvals.record import Approval, Inquiry, short_id
from keyturn.gateway.protocol.questions import Answered
from keyturn.gateway.protocol.records import Person

_LAST_MS = 99_999_999_999_000  # Slack writes a moment in at most eleven digits
_MAX_PEOPLE = 5
_PLACE = 40
_AGENT = 60
_CONVERSATION: LiteralString = "Open the conversation"


def who(person: Person) -> Ref:
    """Mention a person; an id that is not Slack's becomes ``somebody``."""
    try:
        return user(person.user)
    except ValueError:
        return code("somebody")


def when(at_ms: int) -> Ref:
    """Show a moment in each reader's own time zone."""
    return moment(utc(at_ms))


def utc(at_ms: int) -> datetime:
    """Return Unix milliseconds as an aware moment, kept within the calendar."""
    # A damaged record must not prevent its card: `datetime` ends at year 9999 and
    # raises beyond it.
    seconds = min(max(at_ms, 0), _LAST_MS) // 1000
    return datetime.fromtimestamp(seconds, UTC)


def with_author(one: Answered | Inquiry) -> str:
    """Return a person's whole text, below their name and the time; untrusted."""
    at = f"{utc(one.at_ms):%Y-%m-%d %H:%M} UTC"
    return f"{one.by.name or one.by.user}, {at}\n{one.text}"


def short_ref(approval_id: str) -> Ref:
    """Show the short id of an approval, as people type it."""
    return code(short_id(approval_id))


def asked_by(frame: Frame) -> list[Template | Plain]:
    """Return the requester of the calls, the agent, and the link to the conversation.

    For a question: the agent that asks, and the person for whom it works.
    """
    approval, where = frame.approval, frame.conversation
    return [
        *_asked_by(approval),
        *([template("{link}", link=link(where, _CONVERSATION))] if where else []),
    ]


def _asked_by(approval: Approval) -> list[Template | Plain]:
    # Each part is complete: Slack sets the parts of a line apart.
    agent = fit(approval.agent, _AGENT)
    if approval.requester is None:
        return [untrusted(f"Requested by the agent {agent}")]
    person = who(approval.requester)
    # The question is the agent's, not the requester's.
    if approval.is_question:
        said = template("Asked on behalf of {who}", who=person)
    else:
        said = template("Requested by {who}", who=person)
    return [said, untrusted(f"Agent: {agent}")]


def places(names: Sequence[str]) -> Template:
    """Name channels: an id as Slack's mention of it, a "#name" as it is."""
    return join_list([place(name) for name in names])


def place(name: str) -> Template:
    """Name one channel."""
    try:
        return template("{where}", where=channel(fit(name, _PLACE)))
    except ValueError:  # not a channel name in Slack
        return template("another channel")


def people(persons: Sequence[Person]) -> Template:
    """Mention several people: "@ana, @ben and 2 more"."""
    return join_list([template("{who}", who=who(person)) for person in persons])


def join_list(parts: Sequence[Template]) -> Template:
    """Join parts as a list of people: commas, "and", and the number of omitted ones."""
    shown = list(parts[:_MAX_PEOPLE])
    more = len(parts) - len(shown)
    if more:
        return template("{some} and {more} more", some=joined(", ", shown), more=more)
    if len(shown) > 1:
        return joined(" and ", [joined(", ", shown[:-1]), shown[-1]])
    return joined("", shown)


def calls_named(indexes: Iterable[int]) -> str:
    """Return "call 4", or "calls 1-3, 7"."""
    named = numbers(indexes)
    return f"call {named}" if named.isdecimal() else f"calls {named}"


def numbers_ref(indexes: Iterable[int]) -> Template:
    """Return the same as `numbers`, for a sentence in markup."""
    parts: list[Template] = []
    for part in index_ranges({index + 1 for index in indexes}).split(","):
        first, _, last = part.partition("-")
        if last:
            parts.append(template("{a}-{b}", a=int(first), b=int(last)))
        else:
            parts.append(template("{a}", a=int(first)))
    return joined(", ", parts)


def numbers(indexes: Iterable[int]) -> str:
    """Return calls by their visible numbers: "1-3, 7"."""
    return index_ranges(index + 1 for index in indexes).replace(",", ", ")
