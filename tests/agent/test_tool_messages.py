"""A model reads whether a call ran, and no text of others looks like ours."""

from __future__ import annotations

import pytest
from langchain_core.messages import ToolCall

from keyturn.agent.messages import ended_text
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.wire import Answer, AnswerKind

CALL = ToolCall(name="pay", args={"amount": 1}, id="c1")
ANA = Person(team="T0", user="U0ANA", name="Ana")


def ended(kind: AnswerKind, *, message: str = "", has_started: bool = False) -> Answer:
    return Answer(
        type=kind,
        item_id="ap0.0",
        action_hash="sha256:aa",
        message=message,
        by=ANA,
        has_started=has_started,
    )


@pytest.mark.parametrize("kind", [AnswerKind.REJECT, AnswerKind.RESPOND])
def test_of_a_call_that_began_nobody_says_that_it_did_not_run(kind: AnswerKind) -> None:
    before = ended_text(ended(kind))
    after = ended_text(ended(kind, has_started=True))

    assert "did not run" in before
    assert "did not run" not in after
    assert "was stopped; its effects up to then remain" in after
