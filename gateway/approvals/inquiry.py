"""Record of an inquiry: what a reviewer asks the requester, and the reply.

Questions and replies are kept in the order in which they came: a reply is to all that
was asked before it. They are evidence for reviewers, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyturn.gateway.protocol.records import Person, Record

MAX_QUESTION = 1_000
"""Characters of a question, at most."""

MAX_REPLY = 3_000
"""Characters of a reply, at most."""

MOST_QUESTIONS = 10
MOST_REPLIES = 20
"""How many of each an approval keeps."""


class Inquiry(Record):
    """One question of a reviewer, or one reply of the requester.

    Attributes:
        by: who wrote it.
        text: what they wrote.
        at_ms: when it was recorded, by the store's clock.
        call: index of the call that a question is about; None: all of the card.
        reply_ts: the Slack message in which a reply came, by which one that is
            delivered again is known; "" for a question.
    """

    by: Person
    text: str
    at_ms: int
    call: int | None = None
    reply_ts: str = ""

    @property
    def is_reply(self) -> bool:
        """Return whether the requester wrote it."""
        return bool(self.reply_ts)

    def is_about(self, call: int) -> bool:
        """Return whether it belongs to what is shown of one call."""
        return self.call in {None, call}


def unanswered(inquiries: Sequence[Inquiry]) -> tuple[Inquiry, ...]:
    """Return the questions since the last reply, oldest first."""
    last = max((n for n, one in enumerate(inquiries) if one.is_reply), default=-1)
    return tuple(inquiries[last + 1 :])


def answered_by(inquiries: Sequence[Inquiry], reply_ts: str) -> tuple[Inquiry, ...]:
    """Return the questions that this reply was the first one to."""
    times = [one.reply_ts for one in inquiries]
    return unanswered(inquiries[: times.index(reply_ts)]) if reply_ts in times else ()
