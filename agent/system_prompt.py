"""Describe in the system prompt which tools need approval and what that means.

The note holds tool names of the policy and of the agent's code. No person and no model
writes any of it, so it cannot inject instructions. It is the same in every model call
of an agent, so that a provider's prompt cache stays valid.
"""

from __future__ import annotations

from typing import Any, cast

from langchain_core.messages import SystemMessage

from twokey.agent.question_tool import GUIDANCE
from twokey.gateway.protocol.questions import ASK_USER
from twokey.gateway.protocol.wire import AgentNote

_INSTRUCTIONS = (
    "Such a call waits until a person has decided. If its result says that the person "
    "said no, that nobody decided in time, or that it did not run, then it did not "
    "run: do not make the same call again, tell the user. If its result says that a "
    "reviewer changed the arguments, the changed ones are what happened: say so."
)


def with_note(
    system: SystemMessage | None, note: AgentNote, *, can_ask: bool = False
) -> SystemMessage | None:
    """Return the system message with the note appended, and how to ask people."""
    if can_ask:
        # The policy may name the tool, to say who answers; it needs no approval.
        gated = tuple(name for name in note.gated_tools if name != ASK_USER)
        note = note.with_(gated_tools=gated)
    text = "\n\n".join(filter(None, [note_text(note), GUIDANCE if can_ask else ""]))
    if not text:
        return system
    if system is None:
        return SystemMessage(text)
    if isinstance(system.content, str):
        return system.model_copy(update={"content": f"{system.content}\n\n{text}"})
    blocks = cast("list[str | dict[str, Any]]", system.content)
    added = [*blocks, {"type": "text", "text": text}]
    return system.model_copy(update={"content": added})


def note_text(note: AgentNote) -> str:
    """Return the note as text; "" when no tool needs a person."""
    if note.gated_tools:
        names = ", ".join(note.gated_tools)
        others = " Other tools may need it too." if note.other_tools_are_gated else ""
        return f"Calls of these tools need a person's approval: {names}.{others} " + (
            _INSTRUCTIONS
        )
    if note.other_tools_are_gated:
        return f"Calls of tools may need a person's approval. {_INSTRUCTIONS}"
    return ""
