"""Questions to people: deepagents' ``ask_user``, and any other ``interrupt(value)``.

The answer to a plain question is the text that a person wrote, or a value that the
question offered. Any other value could become data of the agent, such as an account
number. So no answer is made up when a question expires.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from pydantic import JsonValue, ValidationError

from keyturn.gateway.dialects.asked import Asked, Ended, NotOfThisForm, NoWord, Question
from keyturn.gateway.dialects.langchain import records, text
from keyturn.gateway.protocol import questions
from keyturn.gateway.protocol.questions import ASK_USER, MAX_QUESTION, QuestionType
from keyturn.gateway.protocol.strict_json import JsonObject, accept
from keyturn.gateway.protocol.wire import Answer, AnswerKind, ProposedCall

_TITLE = "The agent waits for an answer to the text above."
_WORDS = {"Yes": True, "No": False}
_NUMBERS = {"integer", "number"}


def read_ask_user(question: Question, value: JsonValue) -> Asked:
    """Return the questions of deepagents' tool ``ask_user``.

    Raises:
        NotOfThisForm: they are incomplete, or too long to show.
    """
    [request] = records([value])
    asked = records(accept(request.get("questions")))
    return _asked(question, [_question(one) for one in asked])


def answer_ask_user(
    question: Question, value: JsonValue, ends: Sequence[Ended]
) -> JsonValue:
    """Return the answers, or the reason why there are none."""
    del question, value
    [end] = ends
    if isinstance(end, Answer):
        if end.type is AnswerKind.RESPOND and end.answers is not None:
            return {"status": "answered", "answers": [*end.answers]}
        if end.type in {AnswerKind.WITHDRAWN, AnswerKind.REJECT}:
            return {"status": "cancelled"}
        return {"status": "error", "error": end.message}
    return {"status": "error", "error": end.reason}


def read_plain(question: Question, value: JsonValue) -> Asked:
    """Return the question behind a value that belongs to no other format.

    Raises:
        NotOfThisForm: its answer is neither a text, a number nor a choice.
        BadJson: it is not strict JSON.
    """
    value = accept(value)
    offered = _offered(question, value)
    title = value.get("question") if isinstance(value, dict) else value
    row: JsonObject = {"question": _TITLE}
    says = ""
    if isinstance(title, str) and 0 < len(title.strip()) <= MAX_QUESTION:
        row["question"] = title
    if row["question"] != value:
        whole = value if isinstance(value, str) else json.dumps(value, indent=2)
        says = whole
    if offered:
        row |= {"type": QuestionType.MULTIPLE_CHOICE.value, "choices": [*offered]}
    return _asked(question, [row], says)


def answer_plain(
    question: Question, value: JsonValue, ends: Sequence[Ended]
) -> JsonValue:
    """Return what a person answered.

    Raises:
        NoWord: nobody answered, or the answer is none that the question takes.
    """
    [end] = ends
    given = end.answers if isinstance(end, Answer) else None
    if not isinstance(end, Answer) or end.type is not AnswerKind.RESPOND or not given:
        raise NoWord("People did not answer this question, so nothing was sent.")
    words, kind = given[0], _kind(question)
    offered = _offered(question, value)
    if words in offered:
        return offered[words]
    if kind in _NUMBERS:
        return _number(words)
    if kind == "boolean":
        raise NoWord(f"The question takes Yes or No, not {words!r}.")
    return words


def _asked(question: Question, rows: list[JsonObject], says: str = "") -> Asked:
    args: JsonObject = {"questions": cast("list[JsonValue]", rows)}
    try:
        questions.questions_in(args)
    except ValidationError:
        raise NotOfThisForm from None
    call = ProposedCall(
        tool=ASK_USER, args=args, tool_call_id=f"{question.id}:0", is_question=True
    )
    return Asked((call,), is_question=True, says=says)


def _question(given: JsonObject) -> JsonObject:
    row: JsonObject = {"question": text(given, "question"), "type": given.get("type")}
    if choices := given.get("choices"):
        row["choices"] = [text(one, "value") for one in records(choices)]
    return {**row, "required": given.get("required", True)}


def _offered(question: Question, value: JsonValue) -> dict[str, JsonValue]:
    """Return the values that a question offers, by their text for people."""
    schema = question.schema or {}
    given = schema.get("enum")
    if given is None and isinstance(value, dict):
        given = value.get("options")
    if _kind(question) == "boolean" and given is None:
        return {**_WORDS}
    if not isinstance(given, list):
        return {}
    found = {_shown(one): one for one in given}
    return found if len(found) == len(given) > 1 else {}


def _kind(question: Question) -> str:
    """Return the JSON type of the answer.

    Raises:
        NotOfThisForm: people cannot write it as one text.
    """
    kind = (question.schema or {}).get("type", "string")
    # A list of types is no text either.
    if not isinstance(kind, str) or kind not in {"string", "boolean", *_NUMBERS}:
        raise NotOfThisForm
    return kind


def _shown(value: JsonValue) -> str:
    if isinstance(value, dict | list):
        raise NotOfThisForm
    return value if isinstance(value, str) else json.dumps(value)


def _number(words: str) -> JsonValue:
    try:
        found = json.loads(words)
    except ValueError:
        found = None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise NoWord(f"The question takes a number, not {words!r}.")
    return found
