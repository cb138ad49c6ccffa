"""Circuit breaker: submit no more calls of a tool after three in a row fail checks.

A call can be submitted, shown to people and then refused before it runs: another
middleware changed it, the gateway does not know it, or its tool would read it
otherwise. A model that repeats such a call would open one card after another.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

UNCLEARED_KEY = "twokey_uncleared"
"""Marks the tool message of a call that was submitted and then refused."""

MAX_CONSECUTIVE = 3
"""How many refused calls of one tool in a row trip the breaker."""

TRIPPED = (
    f"{MAX_CONSECUTIVE} calls of this tool in a row were not cleared and did not run, "
    "so this one was not submitted, nobody was asked, and it did not run. Do not call "
    "this tool again. Tell the user that somebody has to look at this agent's "
    "middleware and at the approval gateway."
)


def mark_uncleared(message: ToolMessage) -> ToolMessage:
    """Return the message of a refused call, marked so that it is counted."""
    kwargs = {**message.additional_kwargs, UNCLEARED_KEY: True}
    return message.model_copy(update={"additional_kwargs": kwargs})


def is_tripped(tool: str, messages: Sequence[AnyMessage]) -> bool:
    """Return whether calls of this tool are no longer submitted.

    A message of the user, and a call of the tool with another end, reset the count.
    """
    count = 0
    for message in reversed(messages):
        # The user may have fixed the cause.
        if isinstance(message, HumanMessage):
            break
        if isinstance(message, ToolMessage) and message.name == tool:
            if UNCLEARED_KEY not in message.additional_kwargs:
                break
            count += 1
    return count >= MAX_CONSECUTIVE
