"""Models that follow a plan, across interruptions, restarts and handoffs.

A model finds its place in the plan by its earlier messages, so that a new model on the
same thread continues where the last one stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from keyturn.agent.scripted_model import ScriptedModel, calling

GO = "go"
"""How every message of a person begins; each begins a turn of the plan."""

Call = tuple[str, dict[str, Any], str]
Step = str | list[Call]


class Planned(ScriptedModel):
    """The model of the agent with this label."""

    label: str


def planned(label: str, *turns: Sequence[Step]) -> Planned:
    """Return a model with a plan for each turn; the last one counts for later turns."""

    def reply(messages: Sequence[BaseMessage]) -> AIMessage:
        starts = [n for n, message in enumerate(messages) if _is_start(message)]
        turn = turns[min(len(starts), len(turns)) - 1]
        said = [m for m in messages[starts[-1] :] if isinstance(m, AIMessage)]
        for step in turn:
            if not any(_is_step(message, step) for message in said):
                return AIMessage(step) if isinstance(step, str) else calling(*step)
        return AIMessage(f"{label} has nothing more to do")

    return Planned(label=label, reply=reply)


def _is_start(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage) and str(message.text).startswith(GO)


def _is_step(message: AIMessage, step: Step) -> bool:
    if isinstance(step, str):
        return message.text == step
    return {call["id"] for call in message.tool_calls} == {call[2] for call in step}
