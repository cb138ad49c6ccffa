"""What a program asks of the runs that it brings forward itself, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from twokey.gateway.protocol.records import Person, Record, RunRef
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.tiers import Tier

LONGEST_WAIT_S = 60.0
"""How long a question may wait at most for its answer."""

MOST_QUESTIONS = 1000


class PendingCall(Record):
    """One call that waits for people, as a reviewer may see it.

    Attributes:
        item_id: names the call, also to `Twokey.withdraw`.
        tool: what would run.
        args: with which arguments; what the policy redacts is hidden.
        description: what the policy says of it, else what the agent says, marked as
            its words; "" for nothing.
        agent: who asks, which may be an agent inside another one's tool.
        tier: what the call needs.
        channel: where its card is.
        opened_at: since when it waits (UTC).
        expires_at: until when people can decide (UTC); then it does not run.
    """

    item_id: str
    tool: str
    args: JsonObject
    description: str
    agent: str
    tier: Tier
    channel: str
    opened_at: datetime
    expires_at: datetime


class RunFacts(Record):
    """Who asked for a run, and where in Slack; they cannot approve what comes of it.

    ``channel`` and ``thread_ts`` are both given, or both empty.
    """

    run: RunRef
    requester: Person | None = None
    channel: str = ""
    thread_ts: str = ""


class RunQuestion(Record):
    """Ask about a run as a whole."""

    run: RunRef


class Withdrawal(Record):
    """End calls of a run that wait; without ``item_ids``, all that do."""

    run: RunRef
    item_ids: tuple[str, ...] | None = Field(default=None, max_length=MOST_QUESTIONS)


class OpenQuestion(Record):
    """One question that a thread asks: the value of its interrupt says all of it."""

    kind: Literal["twokey.approval", "twokey.reconcile"]
    item_id: str
    action_hash: str


class AnswersQuestion(Record):
    """Ask for the answers to a thread's open questions.

    ``wait_s`` is how long to wait for the first one; 0 does not wait.
    """

    run: RunRef
    questions: tuple[OpenQuestion, ...] = Field(max_length=MOST_QUESTIONS)
    wait_s: float = Field(default=0.0, ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)


class Answered(Record):
    """One question and its answer, which resumes its interrupt.

    ``times`` counts how often an authorization was taken back: an answer that comes
    again with another number is a new one.
    """

    kind: str
    item_id: str
    action_hash: str
    answer: JsonObject
    times: int = 0
