"""Limit repeated asking: stop submitting calls that keep being refused the same way.

A call can be submitted, put to people and then refused before it runs: another
middleware changes it, the gateway does not know it, its tool would read it otherwise.
A model that repeats such a call would open one card after another for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

UNCLEARED_KEY = "twokey_uncleared"
"""Marks an answer of ours to a call that was submitted and then refused."""

MOST_IN_A_ROW = 3
"""How often calls of one tool may end like that before nobody is asked any more."""

STOPPED = (
    f"{MOST_IN_A_ROW} calls of this tool in a row were not cleared and did not run, so "
    "this one was not submitted, nobody was asked, and it did not run. Do not call "
    "this tool again. Tell the user that somebody has to look at this agent's "
    "middleware and at the approval gateway."
)


def mark_uncleared(message: ToolMessage) -> ToolMessage:
    """Return an answer to a call that was submitted and did not run for our reasons."""
    kwargs = {**message.additional_kwargs, UNCLEARED_KEY: True}
    return message.model_copy(update={"additional_kwargs": kwargs})


def is_stopped(tool: str, messages: Sequence[AnyMessage]) -> bool:
    """Return whether a tool's calls are not submitted any more.

    A word of the user, and a call of the tool that ended in another way, begin anew.
    """
    count = 0
    for message in reversed(messages):
        # The user may have had the cause mended.
        if isinstance(message, HumanMessage):
            break
        if isinstance(message, ToolMessage) and message.name == tool:
            if UNCLEARED_KEY not in message.additional_kwargs:
                break
            count += 1
    return count >= MOST_IN_A_ROW
