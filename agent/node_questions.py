"""Ask people questions from a plain LangGraph node, without an agent.

    answers = await aask_questions([{"question": "Which region?", "type": "text"}])

The node pauses until somebody answered. LangGraph runs a node again from its start
after a pause: nothing before this call may have effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from keyturn.agent import interrupts, node_turns, tool_messages
from keyturn.agent.bridge import Awaiting, Blocking, Shell, drive
from keyturn.gateway.arguments import is_a
from keyturn.gateway.client.http_gateway import (
    agent_name,
    current_gateway,
    given_gateway,
)
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.questions import ASK_USER, QuestionSet
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.wire import AnswerKind, ProposedCall, Turn, VerdictKind

Asked = Sequence[str | Mapping[str, Any]]
"""Questions as the tool `ask_user` takes them; a bare text asks for free words."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What people answered.

    Attributes:
        status: ``answered``; ``cancelled`` when nobody answered: they chose not to, or
            did not in time; ``error`` when nobody could be asked.
        answers: one text per question, in order; choices of one question are joined by
            ", ". Empty when nobody answered.
        text: questions and answers as "Q: …" and "A: …", or why there are none.
        by: who answered, or chose not to.
    """

    status: Literal["answered", "cancelled", "error"]
    answers: tuple[str, ...]
    text: str
    by: Person | None = None


def ask_questions(
    questions: Asked,
    *,
    agent: str = "agent",
    key: str = "",
    says: str = "",
    gateway: Gateway | str | None = None,
    api_key: str | None = None,
) -> Answers:
    """Ask people and wait for their answers; for synchronous graphs.

    Args:
        questions: at least one; people answer all of them together.
        agent: the name that policy and the card know the asker by.
        key: names this step within its node; see `require_approval`.
        says: why, in the asker's own words; shown as unverified.
        gateway: the gateway to ask, or its URL; by default the one `connected`, else
            that of the environment.
        api_key: for a gateway at a URL; by default that of the environment.

    Raises:
        ValueError: when these are no questions; nobody was asked.
        SettingsError: when the agent has no usable name; nobody was asked.
        NotAllowed: when no gateway is connected, or the graph keeps no thread.
        ThreadUnavailable: when the gateway does not answer: run the thread again later.
    """
    turn = _turn(questions, agent, key, says)
    found = given_gateway(gateway, api_key) or current_gateway()
    return drive(_ask(turn, found, Blocking()))


async def aask_questions(
    questions: Asked,
    *,
    agent: str = "agent",
    key: str = "",
    says: str = "",
    gateway: Gateway | str | None = None,
    api_key: str | None = None,
) -> Answers:
    """Ask people and wait for their answers; see `ask_questions`."""
    turn = _turn(questions, agent, key, says)
    found = given_gateway(gateway, api_key) or current_gateway()
    return await _ask(turn, found, Awaiting())


def _turn(questions: Asked, agent: str, key: str, says: str) -> Turn:
    # A text is a sequence of texts: people would be asked each of its letters.
    if not is_a(questions, Sequence) or is_a(questions, (str, bytes)):
        raise ValueError(
            f"questions={questions!r} is no list of questions; write ['Which one?'], "
            "also for a single one."
        )
    rows = [
        {"question": one} if isinstance(one, str) else dict(one) for one in questions
    ]
    args = QuestionSet.model_validate({"questions": rows}).model_dump(mode="json")
    call = ProposedCall(
        tool=ASK_USER, args=args, tool_call_id=key or ASK_USER, is_question=True
    )
    ref = node_turns.turn_ref(agent_name(agent), ASK_USER, key)
    return Turn(ref=ref, calls=(call,), says=says)


async def _ask(turn: Turn, gateway: Gateway, shell: Shell) -> Answers:
    verdict = await node_turns.submit(turn, gateway, shell)
    if verdict.kind is not VerdictKind.HOLD:
        return Answers("error", (), tool_messages.denial_text(verdict.reason))
    answer = interrupts.request_decision(verdict, turn.calls[0].args)
    return Answers(
        tool_messages.question_status(answer),
        (answer.type is AnswerKind.RESPOND and answer.answers) or (),
        tool_messages.ended_text(answer),
        answer.by,
    )
