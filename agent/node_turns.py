"""Ask people questions from a plain LangGraph node, without an agent.

    answers = await aask_questions([{"question": "Which region?", "type": "text"}])

The node pauses until the questions are answered. LangGraph runs a node again from its
start after a pause: code before this call must have no effects.

The call of a node is submitted as a turn, which is identified by its position.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

from langgraph.config import get_config

from keyturn.agent import interrupts, tool_messages, turns
from keyturn.agent.bridge import Awaiting, Blocking, Shell, ask_while_held, drive
from keyturn.gateway.arguments import is_a
from keyturn.gateway.client.http_gateway import (
    agent_name,
    current_gateway,
    given_gateway,
)
from keyturn.gateway.errors import (
    FINAL_ERRORS,
    KeyRefused,
    KeyturnError,
    NotAllowed,
    ThreadUnavailable,
)
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.questions import ASK_USER, QuestionSet
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.wire import (
    AnswerKind,
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)

Asked = Sequence[str | Mapping[str, Any]]
"""Questions in the form of the tool `ask_user`; a plain text asks for free text."""

# Count how often a node's body has reached a step, to number repeated steps.
#
# LangGraph runs a body again from its start after each pause, and counts its interrupts
# the same way. Each new run, and each retry by the node's retry policy, starts at 1, so
# a step has the same number whenever the body reaches it.
_SCRATCHPAD = "__pregel_scratchpad"
_RUNTIME = "__pregel_runtime"
"""Keys of LangGraph's data about a running task and its current attempt (private)."""

_lock = threading.Lock()
_counts: WeakKeyDictionary[object, tuple[int, int]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to a set of questions.

    Attributes:
        status: ``answered``; ``cancelled`` when a person declined or the time ran out;
            ``error`` when the questions could not be asked.
        answers: one text per question, in order; choices of one question are joined by
            ", ". Empty without answers.
        text: questions and answers as "Q: …" and "A: …", or the reason without answers.
        by: the person who answered or declined.
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
        questions: at least one; they are answered together.
        agent: the asker's name in policy and card.
        key: names this step within its node; see `require_approval`.
        says: the asker's reason, shown as unverified.
        gateway: the gateway, or its URL. Defaults to the one `connected`, then to that
            of the environment.
        api_key: the key for a remote gateway. Defaults to that of the environment.

    Raises:
        ValueError: when these are not questions.
        SettingsError: when the agent has no usable name.
        NotAllowed: when no gateway is connected, or the graph has no persistent thread.
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
    # A text is a sequence of texts: each letter would become a question.
    if not is_a(questions, Sequence) or is_a(questions, (str, bytes)):
        raise ValueError(
            f"questions={questions!r} is not a list of questions; write "
            "['Which one?'], also for a single one."
        )
    rows = [
        {"question": one} if isinstance(one, str) else dict(one) for one in questions
    ]
    args = QuestionSet.model_validate({"questions": rows}).model_dump(mode="json")
    call = ProposedCall(
        tool=ASK_USER, args=args, tool_call_id=key or ASK_USER, is_question=True
    )
    ref = turn_ref(agent_name(agent), ASK_USER, key)
    return Turn(ref=ref, calls=(call,), says=says)


async def _ask(turn: Turn, gateway: Gateway, shell: Shell) -> Answers:
    verdict = await submit(turn, gateway, shell)
    if verdict.kind is not VerdictKind.HOLD:
        return Answers("error", (), tool_messages.denial_text(verdict.reason))
    answer = interrupts.request_decision(verdict, turn.calls[0].args)
    return Answers(
        tool_messages.question_status(answer),
        (answer.type is AnswerKind.RESPOND and answer.answers) or (),
        tool_messages.ended_text(answer),
        answer.by,
    )


def next_number() -> int:
    """Return how often this attempt of the running task asked, including now."""
    configurable: dict[str, Any] = get_config().get("configurable", {})
    scratchpad: Any = configurable.get(_SCRATCHPAD)
    # LangGraph creates this closure for each run of the body. The scratchpad itself has
    # slots and does not support weak references.
    body = getattr(scratchpad, "get_null_resume", None)
    if body is None:
        return 1
    attempt = _attempt(configurable)
    with _lock:
        last, count = _counts.get(body, (attempt, 0))
        count = count + 1 if last == attempt else 1
        _counts[body] = (attempt, count)
    return count


def _attempt(configurable: dict[str, Any]) -> int:
    info: Any = getattr(configurable.get(_RUNTIME), "execution_info", None)
    return int(getattr(info, "node_attempt", 1))


def turn_ref(agent: str, tool: str, key: str) -> TurnRef:
    """Identify the turn by its position: node, step number, place among siblings.

    A node that runs again after a pause or a crash has the same position, and so finds
    its item again. It has a separate namespace, so that it does not supersede other
    turns.

    Raises:
        NotAllowed: when the graph has no persistent thread.
    """
    here = turns.turn_ref(agent, "?")
    if here is None:
        raise NotAllowed(
            f"The step {tool!r} cannot wait for people without a thread; run the graph "
            "with a checkpointer and a thread_id."
        )
    metadata = get_config().get("metadata", {})
    node = [metadata.get("langgraph_node"), *metadata.get("langgraph_path", ())]
    name = "|".join([here.ns, *(str(part) for part in node)])
    # The first step without a key has no suffix, for compatibility with single-step
    # nodes.
    step_id = key or str(next_number())
    name += "" if step_id == "1" else f"#{step_id}"
    number = metadata.get("langgraph_step")
    return here.with_(ns=name, message_id=f"{name}@{number}/{key or tool}")


async def submit(turn: Turn, gateway: Gateway, shell: Shell) -> Verdict:
    """Return the verdict on the one call of a turn.

    Raises:
        ThreadUnavailable: when the gateway does not answer.
        KeyRefused: when it refuses the API key of this process.
    """
    call = turn.calls[0]
    turn = turn.with_(enclosing_run=run_context.enclosing_run(turn.ref.run_ref))
    try:
        found = await ask_while_held(shell, lambda: gateway.submit(turn))
    except KeyRefused:
        raise
    except FINAL_ERRORS as error:
        return turns.denial(call.tool, call.tool_call_id, str(error))
    except KeyturnError as error:
        # Not a denial, as in the middleware: no model reads it here, and the program
        # can run the thread again.
        raise ThreadUnavailable(
            f"The gateway did not answer about {call.tool!r}, so nothing ran; run the "
            "thread again when it is back."
        ) from error
    about = (call.tool, call.tool_call_id, call.args)
    if len(found) == 1 and turns.is_about(found[0], *about):
        return found[0]
    return turns.denial(call.tool, call.tool_call_id, turns.NO_VERDICT)
