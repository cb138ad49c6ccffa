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


def test_a_document_of_options_is_read_as_a_whole() -> None:
    camel = {"allowedDecisions": ["approve", "reject"], "argsSchema": SCHEMA}
    document: Any = {
        "interruptOn": SNAKE | {"pay": camel},
        "descriptionPrefix": "Look",
    }

    read, plain = InterruptConfig(document), InterruptConfig(SNAKE, "Look")

    assert (read.configs, read.schemas) == (plain.configs, plain.schemas)
    assert vars(read) == vars(plain)


@pytest.mark.parametrize(
    "document", [{"interruptOn": ["pay"]}, {"interruptOn": SNAKE, "pay": True}]
)
def test_a_document_that_cannot_be_read_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="must be a"):
        InterruptConfig(document)


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
