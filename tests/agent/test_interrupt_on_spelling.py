"""`interrupt_on` is read as LangChain spells it, and can be read back."""

from __future__ import annotations

from typing import Any, cast

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware as Stock

from keyturn.agent import ApprovalMiddleware, HumanInTheLoopMiddleware
from keyturn.agent.hints import InterruptConfig

SCHEMA = {"type": "object", "properties": {"amount": {"type": "number"}}}
SNAKE: Any = {
    "pay": {"allowed_decisions": ["approve", "reject"], "args_schema": SCHEMA},
    "look_up": False,
    "mail": True,
}


@pytest.mark.parametrize("misspelled", ["allowedDecisions", "allowed-decisions"])
def test_another_spelling_is_refused(misspelled: str) -> None:
    config: Any = {"pay": {misspelled: ["approve"]}}

    with pytest.raises(ValueError, match="must be a non-empty list"):
        InterruptConfig(config)


def test_the_options_can_be_read_back_as_langchains_are() -> None:
    options: dict[str, Any] = {
        "interrupt_on": SNAKE,
        "description_prefix": "Look",
        "interrupt_mode": "per_call",
    }

    ours, stock = HumanInTheLoopMiddleware(**options), Stock(**options)

    assert ours.description_prefix == stock.description_prefix
    assert ours.interrupt_mode == cast("Any", stock).interrupt_mode
    assert ours.interrupt_on == stock.interrupt_on
    assert ApprovalMiddleware("support").interrupt_on == {}
