"""Records of a foreign question: its value, its calls, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from keyturn.gateway.errors import BadJson, KeyturnError
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Verb
from keyturn.gateway.protocol.strict_json import JsonObject, accept_object
from keyturn.gateway.protocol.wire import (
    Answer,
    AnswerKind,
    CallHint,
    Claimed,
    ProposedCall,
    Verdict,
    VerdictKind,
)

MAX_CALLS = 1000
"""Most calls of one question; a question with more is unknown."""

Ended = Answer | Verdict
"""What became of a call: people's answer, or a verdict that needed no people."""


class NoWord(KeyturnError):
    """The format has no word for what became of the calls, so nothing may be sent."""


class NotOfThisForm(Exception):
    """The value only resembles a format; nothing may be guessed about it."""


@dataclass(frozen=True)
class Question:
    """An open question of another library, as its runtime shows it.

    ``value`` may be any value. ``schema`` is the JSON Schema of
    its answer, if the agent gave one.
    """

    id: str
    value: object
    schema: JsonObject | None = None


@dataclass(frozen=True)
class Asked:
    """The calls or questions that people are asked about.

    Attributes:
        calls: in the order in which the answer names them; for a question to people one
            call of `ASK_USER`.
        is_question: people answer; nothing runs.
        tells_edits: the model is told that a reviewer changed a call.
        keeps_reason: the reason of a rejection reaches the agent.
        says: text for people above the calls, in the agent's words.
        schemas: JSON Schema of the arguments, by tool, where the question has it.
        handed_over: the agent runs the calls by itself.
    """

    calls: tuple[ProposedCall, ...]
    is_question: bool = False
    tells_edits: bool = False
    keeps_reason: bool = True
    says: str = ""
    schemas: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    handed_over: bool = True


def proposed(
    question: Question,
    place: int,
    tool: str,
    args: JsonObject,
    words: Iterable[Verb],
    description: str = "",
) -> ProposedCall:
    """Return one call of a question; ``words`` are the decisions its format takes.

    Arguments that are not strict JSON cannot be shown to people, so they are left out
    and the call has a problem: the gateway refuses it, and its siblings go on.
    """
    problem = ""
    try:
        args = accept_object(args)
    except BadJson as error:
        args, problem = {}, f"This call did not run: {error}"
    given = {*words}
    # An edit with equal arguments is an approval, and a response a rejection in words.
    if Verb.EDIT in given:
        given.add(Verb.APPROVE)
    if Verb.RESPOND in given:
        given.add(Verb.REJECT)
    if not given:
        raise NotOfThisForm
    # No policy can let a call run that its format cannot approve.
    hold = None if Verb.APPROVE in given else True
    hint = CallHint(
        hold=hold,
        allow=tuple(verb for verb in Verb if verb in given),
        description=description,
    )
    return ProposedCall(
        tool=tool,
        args=args,
        tool_call_id=f"{question.id}:{place}",
        hint=hint,
        problem=problem,
    )


@dataclass(frozen=True)
class Decision:
    """A decision on one call, in the words of a format.

    ``args`` are those of an edit, and the requested ones otherwise. ``text`` is a
    reviewer's text, or Keyturn's reason.
    """

    verb: Verb
    args: JsonObject
    text: str = ""


def decision(call: ProposedCall, words: Iterable[Verb], end: Ended) -> Decision:
    """Return what to say about a call, in a word that its format takes.

    Raises:
        NoWord: the format takes no such word.
    """
    takes = {*words}
    verb, text, args = _verb(call, end), _text(end), call.args
    if verb is Verb.EDIT and isinstance(end, Answer) and end.args is not None:
        args = digest.in_spelling_of(call.args, end.args)
        if digest.same(args, call.args):
            verb = Verb.APPROVE
    if verb is Verb.APPROVE and verb not in takes:
        verb = Verb.EDIT
    if verb is Verb.REJECT and verb not in takes:
        # The agent takes the text for the tool's result, so it says that nothing ran.
        verb, text = Verb.RESPOND, f"This call was refused and did not run. {text}"
    elif verb is Verb.RESPOND and verb not in takes:
        verb = Verb.REJECT
    if verb not in takes:
        raise NoWord(
            f"The agent's question takes no {_verb(call, end)} of {call.tool!r}, so "
            "nothing was sent."
        )
    return Decision(verb, args, text.strip())


def is_as_decided(call: Verdict, end: Ended, claimed: Claimed) -> bool:
    """Return whether a claim is for the call that the answer was read for.

    In between, a decision may have been revoked, and another one made.
    """
    if isinstance(end, Answer) and end.type is AnswerKind.EDIT:
        return digest.same(digest.action_args(claimed.action), end.args)
    return claimed.action_hash == call.action_hash


def _verb(call: ProposedCall, end: Ended) -> Verb:
    if isinstance(end, Verdict):
        if end.kind is VerdictKind.HOLD:
            raise ValueError(f"The call {call.tool_call_id} is not decided.")
        return Verb.APPROVE if end.kind is VerdictKind.RUN else Verb.REJECT
    match end.type:
        case AnswerKind.APPROVE:
            return Verb.APPROVE
        case AnswerKind.EDIT:
            return Verb.EDIT
        case AnswerKind.RESPOND:
            return Verb.RESPOND
        case _:
            return Verb.REJECT


def _text(end: Ended) -> str:
    return end.reason if isinstance(end, Verdict) else end.message
