"""Read the question of another library's agent, and write the answer to it.

Every format has exactly one reader. A value that only resembles a format is unknown: it
is shown to people as data, and never answered, because a wrong answer can make a thread
unusable.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from pydantic import JsonValue

from keyturn.gateway.dialects import langchain, questions
from keyturn.gateway.dialects.asked import Asked, Ended, NotOfThisForm, NoWord, Question
from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol.questions import ASK_USER
from keyturn.gateway.protocol.records import Untold
from keyturn.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    RECONCILE_INTERRUPT,
    ProposedCall,
    Turn,
    TurnRef,
)

_OURS = frozenset({APPROVAL_INTERRUPT, RECONCILE_INTERRUPT})


_LONGEST_NAME = 80


class _Dialect(NamedTuple):
    read: Callable[[Question, JsonValue], Asked]
    answer: Callable[[Question, JsonValue, Sequence[Ended]], JsonValue]


_DIALECTS = {
    "batched": _Dialect(langchain.read_batched, langchain.answer_batched),
    "per_call": _Dialect(langchain.read_call, langchain.answer_call),
    "inbox": _Dialect(langchain.read_inbox, langchain.answer_inbox),
    "ask_user": _Dialect(questions.read_ask_user, questions.answer_ask_user),
    "plain": _Dialect(questions.read_plain, questions.answer_plain),
}


def read(question: Question) -> Asked | None:
    """Return the calls of a question; None if no dialect knows it.

    Keyturn's own questions belong to no dialect.
    """
    try:
        value = cast("JsonValue", question.value)
        dialect = _DIALECTS.get(_format(value))
        return dialect.read(question, value) if dialect else None
    except (BadJson, NotOfThisForm):
        return None


def answer(question: Question, ends: Sequence[Ended]) -> JsonValue:
    """Return the value to resume a question with.

    Args:
        question: exactly as it was read.
        ends: what became of each of its calls, in their order.

    Raises:
        NoWord: the format cannot say it, so nothing may be sent.
        ValueError: there is not one end for each call.
    """
    asked = read(question)
    if asked is None:
        raise NoWord("No dialect knows this question, so nothing was sent.")
    if len(ends) != len(asked.calls):
        raise ValueError(f"{len(asked.calls)} calls need as many ends: {len(ends)}.")
    value = cast("JsonValue", question.value)
    return _DIALECTS[_format(value)].answer(question, value, ends)


def turn_of(
    question: Question, asked: Asked, *, agent: str, thread: str, handed_to: str = ""
) -> Turn:
    """Return the turn of a question.

    Each question is a lane, so that questions of parallel branches do not supersede
    each other. Its message is named by id and value: some versions of LangGraph give
    two questions of one node the same id.

    Args:
        question: as it was read.
        asked: what `read` returned.
        agent: name of the agent in policy and cards.
        thread: the runtime's id of the thread.
        handed_to: the program that runs the calls, for people; other characters than
            those of `wire.PROGRAM` are replaced.
    """
    ref = TurnRef(
        agent=agent, thread=thread, ns=question.id, message_id=message_id(question)
    )
    return Turn(
        ref=ref,
        calls=tuple(_with_untold(call, asked) for call in asked.calls),
        says=asked.says,
        schemas=asked.schemas,
        handed_to=program_name(handed_to) if handed_to else "",
    )


def _with_untold(call: ProposedCall, asked: Asked) -> ProposedCall:
    """Return a call with what its format cannot tell the agent of a decision."""
    if call.hint is None:
        return call
    # No format has a place for the reason of an edit.
    untold = [Untold.EDIT_REASON]
    untold += [] if asked.tells_edits else [Untold.EDIT]
    untold += [] if asked.keeps_reason else [Untold.REJECTION_REASON]
    return call.with_(hint=call.hint.with_(untold=tuple(untold)))


def program_name(text: str) -> str:
    """Return a name of a program that people can read and a turn accepts."""
    plain = re.sub(r"[^A-Za-z0-9 _.:/-]+", "-", text)[:_LONGEST_NAME]
    return plain.strip(" _.:/-") or "the agent"


def message_id(question: Question) -> str:
    """Return the name of a question's turn: its id and the digest of its value."""
    # Not only strict JSON: calls with other arguments are turns as well.
    body = json.dumps(question.value, sort_keys=True, default=repr)
    return f"{question.id}.{hashlib.sha256(body.encode()).hexdigest()[:16]}"


def _format(value: JsonValue) -> str:
    """Return the name of a value's format; "" for a question of Keyturn, or a mixture.

    A value with the marks of two formats belongs to none.
    """
    parts = value if isinstance(value, list) else [value]
    objects = [one for one in parts if isinstance(one, dict)]
    kinds = [str(one.get("type")) for one in objects]
    names = {name for one in objects for name in one}
    marks = {
        "batched": not names.isdisjoint(langchain.MARKS),
        "per_call": langchain.PER_CALL in kinds,
        "inbox": langchain.INBOX in names,
        "ask_user": ASK_USER in kinds,
    }
    found = [name for name, is_marked in marks.items() if is_marked]
    if not _OURS.isdisjoint(kinds) or len(found) > 1:
        return ""
    return found[0] if found else "plain"
