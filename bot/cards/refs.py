"""Format people, times and hashes as Slack mrkdwn, from ids and numbers only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import LiteralString

from keyturn.bot.cards.frame import Frame
from keyturn.bot.text import (
    NAME,
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
from keyturn.gateway.approvals.record import Inquiry, short_id
from keyturn.gateway.approvals.standing import bounds_of
from keyturn.gateway.protocol.questions import Answered
from keyturn.gateway.protocol.records import Person

_LAST_MS = 99_999_999_999_000  # Slack writes a moment in at most eleven digits
_MAX_PEOPLE = 5
_PLACE = 40
_CONVERSATION: LiteralString = "conversation"


def who(person: Person) -> Ref:
    """Mention a person; an id that is not Slack's becomes ``somebody``."""
    try:
        return user(person.user)
    except ValueError:
        return code("somebody")


def actor(name: str) -> Ref:
    """Mention the Slack user who did it, or show the name of a command-line user."""
    _, _, person = name.partition("/")
    # "T0/U0ANA" by Slack, "cli/ana" by the command line; other names are shown as
    # "somebody".
    for ref, text in ((user, person), (code, name)):
        with suppress(ValueError):
            return ref(text)
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


def asked(frame: Frame) -> Template:
    """Return who asked, through which agent, with a link to the conversation.

    For a question: the agent that asks, and the person for whom it works. For a
    standing approval: the agent whose calls it covers.
    """
    approval, where = frame.approval, frame.conversation
    said: LiteralString = "Requested by {agent}"
    named: dict[str, Ref] = {}
    if approval.is_standing:
        said = "For calls of {agent}"
    elif approval.requester is not None:
        named["who"] = who(approval.requester)
        # A question is the agent's, not the requester's.
        said = "Requested by {who} through {agent}"
        if approval.is_question:
            said = "Asked by {agent} on behalf of {who}"
    links = {"link": link(where, _CONVERSATION)} if where else {}
    said += " ({link})." if where else "."
    return template(said, agent=agent_ref(_agent(frame))[0], **named, **links)


def unusual_agent(frame: Frame) -> list[Plain]:
    """Return the name of an agent that `asked` does not show, as plain text."""
    return agent_ref(_agent(frame))[1]


def _agent(frame: Frame) -> str:
    approval = frame.approval
    return bounds_of(approval).agent if approval.is_standing else approval.agent


def agent_ref(name: str) -> tuple[Template, list[Plain]]:
    """Return an agent for a sentence, and its name for below if it does not fit."""
    with suppress(ValueError):  # it could be read as markup
        if len(name) <= NAME:
            return template("{name}", name=code(name)), []
    return template("an agent"), [untrusted(f"Agent: {fit(name, NAME)}")]


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


def calls_named(indexes: Iterable[int]) -> Template:
    """Return "call 4", or "calls 1-3, 7"."""
    ranges = index_ranges({index + 1 for index in indexes})
    named = [
        joined("-", [template("{n}", n=int(number)) for number in part.split("-")])
        for part in ranges.split(",")
    ]
    noun: LiteralString = "call " if ranges.isdecimal() else "calls "
    return template(noun + "{named}", named=joined(", ", named))
