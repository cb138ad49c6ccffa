"""Questions in the format of LangChain's Agent Inbox.

The value is one request or a list of them; the answer is always a list. A rejection is
``ignore``, which has no place for a reason, and an approval repeats the request.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from keyturn.gateway.dialects.asked import (
    Asked,
    Decision,
    Ended,
    Question,
    decision,
    proposed,
)
from keyturn.gateway.dialects.langchain import described, record, records, text
from keyturn.gateway.protocol.records import Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall

MARK = "action_request"

_ALLOWS = {
    Verb.APPROVE: "allow_accept",
    Verb.EDIT: "allow_edit",
    Verb.REJECT: "allow_ignore",
    Verb.RESPOND: "allow_respond",
}


def read(question: Question, value: JsonValue) -> Asked:
    """Return the calls of a question.

    Raises:
        NotOfThisForm: it is incomplete.
    """
    requests = _requests(value)
    calls = tuple(_proposed(question, *row) for row in enumerate(requests))
    loses = any(Verb.REJECT in _words(one) for one in requests)
    return Asked(calls, keeps_reason=not loses)


def answer(question: Question, value: JsonValue, ends: Sequence[Ended]) -> JsonValue:
    """Return the responses to all requests."""
    rows = zip(read(question, value).calls, _requests(value), ends, strict=True)
    return [_spelled(one, decision(call, _words(one), end)) for call, one, end in rows]


def _proposed(question: Question, place: int, request: JsonObject) -> ProposedCall:
    action, words = record(request, MARK), _words(request)
    tool, args = text(action, "action"), record(action, "args")
    return proposed(question, place, tool, args, words, described(request))


def _requests(value: JsonValue) -> list[JsonObject]:
    return records(value if isinstance(value, list) else [value])


def _words(request: JsonObject) -> list[Verb]:
    config = record(request, "config")
    return [verb for verb, name in _ALLOWS.items() if config.get(name) is True]


def _spelled(request: JsonObject, found: Decision) -> JsonObject:
    action = record(request, MARK)
    match found.verb:
        case Verb.APPROVE:
            return {"type": "accept", "args": action}
        case Verb.EDIT:
            return {"type": "edit", "args": {**action, "args": found.args}}
        case Verb.REJECT:
            return {"type": "ignore", "args": None}
        case Verb.RESPOND:
            return {"type": "response", "args": found.text}
