"""Questions of LangChain's human-in-the-loop middleware, also those of deepagents.

Batched, in the spelling of Python or JavaScript: one question for all calls of a
message. Its answer has one decision for each call, in order; any other list leaves the
thread unable to continue. Per call: one question for each call; its ``response_schema``
has the decisions it takes.

Also questions in the format of LangChain's Agent Inbox. The value is one request or a
list of them; the answer is always a list. A rejection is ``ignore``, which has no place
for a reason, and an approval repeats the request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, cast

from pydantic import JsonValue

from keyturn.gateway.dialects.asked import (
    MAX_CALLS,
    Asked,
    Decision,
    Ended,
    NotOfThisForm,
    Question,
    decision,
    proposed,
)
from keyturn.gateway.protocol.records import Verb
from keyturn.gateway.protocol.strict_json import JsonObject, accept, pointed
from keyturn.gateway.protocol.wire import ProposedCall


class _Spelling(NamedTuple):
    requests: str
    reviews: str
    name: str
    decisions: str
    edited: str
    tells_edits: bool


_PYTHON = _Spelling(
    "action_requests", "review_configs", "action_name",
    "allowed_decisions", "edited_action", tells_edits=True,
)  # fmt: skip
_JAVASCRIPT = _Spelling(
    "actionRequests", "reviewConfigs", "actionName",
    "allowedDecisions", "editedAction", tells_edits=False,
)  # fmt: skip
PER_CALL = "tool_approval"

MARKS = frozenset(
    name for each in (_PYTHON, _JAVASCRIPT) for name in (each.requests, each.reviews)
)
"""Names that mark a batched question; a value with them is never a plain one."""


Words = Collection[Verb]


class _Batch(NamedTuple):
    spelling: _Spelling
    requests: list[JsonObject]
    words: dict[str, Words]


def read_batched(question: Question, value: JsonValue) -> Asked:
    """Return the calls of a batched question.

    Raises:
        NotOfThisForm: it is incomplete, or mixes two spellings.
    """
    spelling, requests, words = _batch(value)
    calls = tuple(
        _proposed(question, place, one, words) for place, one in enumerate(requests)
    )
    return Asked(calls, tells_edits=spelling.tells_edits)


def answer_batched(
    question: Question, value: JsonValue, ends: Sequence[Ended]
) -> JsonValue:
    """Return the decisions on all calls of a batched question."""
    spelling, _, words = _batch(value)
    calls = read_batched(question, value).calls
    return {
        "decisions": [
            _spelled(call.tool, decision(call, words[call.tool], end), spelling.edited)
            for call, end in zip(calls, ends, strict=True)
        ]
    }


def _batch(whole: JsonValue) -> _Batch:
    [value] = records([whole])
    spelling = _JAVASCRIPT if _JAVASCRIPT.requests in value else _PYTHON
    if {*value} & MARKS != {spelling.requests, spelling.reviews}:
        raise NotOfThisForm
    requests = records(value[spelling.requests])
    words: dict[str, Words] = {}
    for review in records(value[spelling.reviews]):
        name = text(review, spelling.name)
        if words.setdefault(name, verbs := _verbs(review, spelling.decisions)) != verbs:
            raise NotOfThisForm
    return _Batch(spelling, requests, words)


def _proposed(
    question: Question, place: int, request: JsonObject, words: Mapping[str, Words]
) -> ProposedCall:
    tool = text(request, "name")
    if tool not in words:
        raise NotOfThisForm
    args = record(request, "args")
    return proposed(question, place, tool, args, words[tool], described(request))


def read_call(question: Question, value: JsonValue) -> Asked:
    """Return the call of a per-call question.

    Raises:
        NotOfThisForm: it is incomplete; without a schema its decisions are unknown.
    """
    [request] = records([value])
    tool, words = text(request, "name"), _words_of(question.schema or {})
    call = _proposed(question, 0, request, {tool: words})
    edits = words.get(Verb.EDIT)
    return Asked((call,), tells_edits=True, schemas={tool: edits} if edits else {})


def answer_call(
    question: Question, value: JsonValue, ends: Sequence[Ended]
) -> JsonValue:
    """Return the decision on a per-call question."""
    [call], [end] = read_call(question, value).calls, ends
    words = _words_of(question.schema or {})
    return _spelled(call.tool, decision(call, words, end), _PYTHON.edited)


def _words_of(schema: JsonObject) -> dict[Verb, JsonObject]:
    """Return the decisions a schema takes; for an edit with the arguments' schema."""
    found: dict[Verb, JsonObject] = {}
    branches = schema.get("oneOf") or schema.get("anyOf") or [schema]
    for branch in records(branches):
        whole = _resolved(schema, branch)
        word = pointed(whole, "/properties/type/const")
        if not isinstance(word, str) or word not in {*Verb}:
            continue
        edited = _resolved(schema, pointed(whole, f"/properties/{_PYTHON.edited}"))
        args = _resolved(schema, pointed(edited, "/properties/args"))
        definitions = schema.get("$defs")
        shared: JsonObject = {"$defs": definitions} if args and definitions else {}
        found[Verb(word)] = {**shared, **args}
    return found


def _resolved(root: JsonObject, part: JsonValue) -> JsonObject:
    if not isinstance(part, dict):
        return {}
    reference = part.get("$ref")
    target = pointed(root, reference) if isinstance(reference, str) else part
    return target if isinstance(target, dict) else {}


def _spelled(tool: str, found: Decision, edited: str) -> JsonObject:
    said: JsonObject = {"type": found.verb.value}
    if found.verb is Verb.EDIT:
        said[edited] = {"name": tool, "args": found.args}
    elif found.verb is Verb.RESPOND or (found.verb is Verb.REJECT and found.text):
        # LangChain's own text for a rejection without a reason is complete.
        said["message"] = found.text
    return said


def _verbs(review: JsonObject, name: str) -> frozenset[Verb]:
    given = review.get(name)
    words = given if isinstance(given, list) else []
    return frozenset(verb for verb in Verb if verb.value in words)


def described(request: JsonObject) -> str:
    """Return a description without LangChain's list of name and arguments."""
    given = request.get("description")
    if not isinstance(given, str):
        return ""
    prefix, is_standard, _ = given.partition(f"\n\nTool: {request.get('name')}\nArgs: ")
    is_empty = is_standard and prefix == "Tool execution requires approval"
    return "" if is_empty else prefix


def text(value: JsonObject, name: str) -> str:
    """Return a text of a value.

    Raises:
        NotOfThisForm: it is empty, or no text.
        BadJson: it is not Unicode.
    """
    found = accept(value.get(name))
    if not isinstance(found, str) or not found:
        raise NotOfThisForm
    return found


def record(value: JsonObject, name: str) -> JsonObject:
    """Return an object of a value.

    Raises:
        NotOfThisForm: it is none, or there is a second one in another spelling.
    """
    found = value.get(name)
    if not isinstance(found, dict) or (name == "args" and "arguments" in value):
        raise NotOfThisForm
    return found


def records(given: JsonValue) -> list[JsonObject]:
    """Return a list of objects.

    Raises:
        NotOfThisForm: it is another value, empty, or longer than `MAX_CALLS`.
    """
    found = given if isinstance(given, list) else []
    if not 0 < len(found) <= MAX_CALLS or not all(isinstance(o, dict) for o in found):
        raise NotOfThisForm
    return cast("list[JsonObject]", found)


INBOX = "action_request"

_ALLOWS = {
    Verb.APPROVE: "allow_accept",
    Verb.EDIT: "allow_edit",
    Verb.REJECT: "allow_ignore",
    Verb.RESPOND: "allow_respond",
}


def read_inbox(question: Question, value: JsonValue) -> Asked:
    """Return the calls of a question.

    Raises:
        NotOfThisForm: it is incomplete.
    """
    requests = _requests(value)
    calls = tuple(_of_inbox(question, *row) for row in enumerate(requests))
    loses = any(Verb.REJECT in _words(one) for one in requests)
    return Asked(calls, keeps_reason=not loses)


def answer_inbox(
    question: Question, value: JsonValue, ends: Sequence[Ended]
) -> JsonValue:
    """Return the responses to all requests."""
    rows = zip(read_inbox(question, value).calls, _requests(value), ends, strict=True)
    return [_reply(one, decision(call, _words(one), end)) for call, one, end in rows]


def _of_inbox(question: Question, place: int, request: JsonObject) -> ProposedCall:
    action, words = record(request, INBOX), _words(request)
    tool, args = text(action, "action"), record(action, "args")
    return proposed(question, place, tool, args, words, described(request))


def _requests(value: JsonValue) -> list[JsonObject]:
    return records(value if isinstance(value, list) else [value])


def _words(request: JsonObject) -> list[Verb]:
    config = record(request, "config")
    return [verb for verb, name in _ALLOWS.items() if config.get(name) is True]


def _reply(request: JsonObject, found: Decision) -> JsonObject:
    action = record(request, INBOX)
    match found.verb:
        case Verb.APPROVE:
            return {"type": "accept", "args": action}
        case Verb.EDIT:
            return {"type": "edit", "args": {**action, "args": found.args}}
        case Verb.REJECT:
            return {"type": "ignore", "args": None}
        case Verb.RESPOND:
            return {"type": "response", "args": found.text}
