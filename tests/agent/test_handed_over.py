"""A tool that passes the history on keeps its messages, and adds none."""

from __future__ import annotations

from typing import Any, cast

from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.types import Command

from keyturn.agent.messages import EDIT_KEY
from keyturn.agent.result_codec import clean_result
from keyturn.gateway.protocol import edits

TOLD = ToolMessage(
    f"{edits.EDIT_MARK} A reviewer changed this call.",
    tool_call_id="c1",
    id="m1",
    additional_kwargs={EDIT_KEY: {"item_id": "ap0.0"}},
)
HISTORY: list[Any] = [HumanMessage("pay"), TOLD]


def handed_over(*messages: Any) -> list[Any]:
    """Return the messages of a handoff as the agents after it read them."""
    command: Any = Command(
        goto="b", graph=Command.PARENT, update={"messages": [*messages]}
    )
    update = cast("Any", clean_result(command, HISTORY)).update
    return cast("list[Any]", update["messages"])


def test_a_result_of_the_history_is_handed_over_word_for_word() -> None:
    handoff = ToolMessage("transferred", tool_call_id="c2")

    assert handed_over(*HISTORY, handoff) == [*HISTORY, handoff]


def test_a_result_that_is_not_quite_of_the_history_says_nothing_for_us() -> None:
    [changed] = handed_over(TOLD.model_copy(update={"content": f"{TOLD.content}!"}))
    [other] = handed_over(TOLD.model_copy(update={"tool_call_id": "c9"}))

    for message in (changed, other):
        assert edits.EDIT_MARK not in str(message.content)
        assert EDIT_KEY not in message.additional_kwargs
