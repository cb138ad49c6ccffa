"""Models that follow a plan, whatever was cut off, resumed or handed over between.

A model finds its place in the plan by what its own messages already say, so that one
that is built anew on the same thread goes on where the last one stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from typing_extensions import override

GO = "go"
"""How every message of a person begins; each begins a turn of the plan."""

Call = tuple[str, dict[str, Any], str]
Step = str | list[Call]


class Planned(BaseChatModel):
    """A model with a plan for each turn: words, or calls with ids of its own."""

    label: str
    plan: list[list[Any]]
    seen: list[list[BaseMessage]]

    @property
    @override
    def _llm_type(self) -> str:
        return "planned"

    @override
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    @override
    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.seen.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=self._next(messages))])

    def _next(self, messages: Sequence[BaseMessage]) -> AIMessage:
        starts = [n for n, message in enumerate(messages) if _is_start(message)]
        turn = self.plan[min(len(starts), len(self.plan)) - 1]
        said = [m for m in messages[starts[-1] :] if isinstance(m, AIMessage)]
        for step in turn:
            if not any(_is_step(message, step) for message in said):
                return _message(step)
        return AIMessage(f"{self.label} has nothing more to do")


def planned(label: str, *turns: Sequence[Step]) -> Planned:
    """Return a model with a plan for each turn; the last one counts for later turns."""
    return Planned(label=label, plan=[list(turn) for turn in turns], seen=[])


def _is_start(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage) and str(message.text).startswith(GO)


def _is_step(message: AIMessage, step: Step) -> bool:
    if isinstance(step, str):
        return message.text == step
    return {call["id"] for call in message.tool_calls} == {call[2] for call in step}


def _message(step: Step) -> AIMessage:
    if isinstance(step, str):
        return AIMessage(step)
    calls: list[Any] = [
        {"name": name, "args": args, "id": call_id, "type": "tool_call"}
        for name, args, call_id in step
    ]
    return AIMessage("", tool_calls=calls)
