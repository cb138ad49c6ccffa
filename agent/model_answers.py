"""Read an answer of the model before LangGraph has put it into the agent's state."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from langchain.agents.middleware.types import AgentState, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, ToolCall

from twokey.agent import turns
from twokey.agent.prepared_calls import (
    NO_KEPT,
    CanonicalArgs,
    PreparedCall,
    Toolbox,
    prepare_calls,
)

CUT_OFF = (
    "Your answer reached its token limit within or after this call, so its arguments "
    "may be cut off, and it did not run. Make the call again, in a shorter answer."
)
_LIMITS = frozenset({"length", "max_tokens", "max_output_tokens"})


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """An AI message with calls that nothing answers.

    Attributes:
        message: it; it has an id.
        calls: those without an answer.
        state: the agent's state, with what the model answered among its messages.
    """

    message: AIMessage
    calls: Sequence[ToolCall]
    state: AgentState[Any]

    @property
    def message_id(self) -> str:
        """Return the id under which the turn is submitted and kept."""
        return str(self.message.id)

    @property
    def history(self) -> Sequence[AnyMessage]:
        """Return all messages of the agent, the answer included."""
        return self.state["messages"]


def open_turn(state: AgentState[Any], answer: ModelResponse[Any]) -> OpenTurn | None:
    """Return the turn that an answer opens; None when it calls nothing.

    An answer with a structured response calls a tool that is answered already.
    """
    result = cast("list[AnyMessage]", answer.result)
    found = turns.pending_calls(result)
    if found is None:
        return None
    members = cast("Mapping[str, Any]", state)
    after = {**members, "messages": [*members["messages"], *result]}
    return OpenTurn(*found, state=cast("AgentState[Any]", after))


def with_message_ids(answer: ModelResponse[Any]) -> ModelResponse[Any]:
    """Return an answer whose AI messages have ids, as LangGraph would give them.

    A turn is submitted, and kept, under the id of its message.
    """
    if not any(isinstance(one, AIMessage) and one.id is None for one in answer.result):
        return answer
    result = [
        message.model_copy(update={"id": str(uuid.uuid4())})
        if isinstance(message, AIMessage) and message.id is None
        else message
        for message in answer.result
    ]
    return replace(answer, result=result)


def prepare_answer(
    message: AIMessage,
    calls: Sequence[ToolCall],
    tools: Toolbox,
    kept: Mapping[str, CanonicalArgs] = NO_KEPT,
) -> Mapping[str, PreparedCall]:
    """Prepare the open calls of a message; one that was cut off has a problem.

    LangChain completes the JSON of a streamed call that breaks off: of an amount of
    899, an amount of 8 may be left. Calls are written one after the other, so those
    before the last one are whole.
    """
    ready = prepare_calls(calls, tools, kept)
    last = message.tool_calls[-1]["id"] or ""
    if not _is_cut_off(message) or last not in ready:
        return ready
    return {**ready, last: replace(ready[last], problem=CUT_OFF)}


def _is_cut_off(message: AIMessage) -> bool:
    about = cast("Mapping[str, object]", message.response_metadata)
    details = about.get("incomplete_details")
    if isinstance(details, Mapping):  # OpenAI's responses
        about = {**about, **cast("Mapping[str, object]", details)}
    # OpenAI and Gemini, Anthropic, Bedrock, Ollama, OpenAI's responses.
    names = ("finish_reason", "stop_reason", "stopReason", "done_reason", "reason")
    return any(str(about.get(name)).lower() in _LIMITS for name in names)
