"""`interrupt_on` is read in both of LangChain's spellings, and can be read back."""

from __future__ import annotations

from typing import Any, cast

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware as Stock

from keyturn.agent import ApprovalMiddleware, HumanInTheLoopMiddleware
from keyturn.agent.hints import InterruptConfig

SCHEMA = {"type": "object", "properties": {"amount": {"type": "number"}}}
CAMEL: Any = {
    "pay": {"allowedDecisions": ["approve", "reject"], "argsSchema": SCHEMA},
    "look_up": False,
    "mail": True,
}
SNAKE: Any = {
    "pay": {"allowed_decisions": ["approve", "reject"], "args_schema": SCHEMA},
    "look_up": False,
    "mail": True,
}


@pytest.mark.parametrize("given", [CAMEL, {"interruptOn": CAMEL}])
def test_camel_case_means_what_snake_case_means(given: Any) -> None:
    camel, snake = InterruptConfig(given), InterruptConfig(SNAKE)

    assert camel.names == snake.names == ("mail", "pay")
    assert camel.schemas == snake.schemas == {"pay": SCHEMA}
    assert camel.configs == snake.configs


def test_a_tool_may_be_called_like_the_option() -> None:
    config: Any = {"interruptOn": {"allowedDecisions": ["approve"]}}

    assert InterruptConfig(config).names == ("interruptOn",)


@pytest.mark.parametrize("option", ["interruptOn", "interrupt_on"])
@pytest.mark.parametrize("prefix", ["descriptionPrefix", "description_prefix"])
def test_a_document_of_options_is_read_as_a_whole(option: str, prefix: str) -> None:
    document: Any = {option: CAMEL, prefix: "Look at this"}

    config = InterruptConfig(document)

    assert config.names == ("mail", "pay")
    assert {one.description for one in config.tools.values()} == {"Look at this"}


@pytest.mark.parametrize(
    "document",
    [
        {"interruptOn": CAMEL, "interrupt_on": SNAKE},
        {"interruptOn": CAMEL, "descriptionPrefix": 7},
        {"interruptOn": "pay", "descriptionPrefix": ""},
        {"interruptOn": None},
    ],
    ids=str,
)
def test_a_document_that_cannot_be_read_gates_nothing_in_silence(document: Any) -> None:
    with pytest.raises(ValueError, match="interruptOn"):
        InterruptConfig(document)


def test_the_middleware_is_made_of_javascripts_options() -> None:
    ours = HumanInTheLoopMiddleware(interruptOn=CAMEL, descriptionPrefix="Look")

    assert ours.interrupt_on == HumanInTheLoopMiddleware(SNAKE).interrupt_on
    assert ours.description_prefix == "Look"


@pytest.mark.parametrize("options", [{}, {"interruptOn": CAMEL, "interruptMode": "x"}])
def test_any_other_option_is_refused_by_name(options: Any) -> None:
    with pytest.raises(TypeError, match=r"Give `interrupt_on`, or `interruptOn`"):
        HumanInTheLoopMiddleware(**options)


def test_two_spellings_of_one_thing_are_refused() -> None:
    config: Any = {"pay": {**SNAKE["pay"], "allowedDecisions": ["approve"]}}

    with pytest.raises(ValueError, match="both `allowedDecisions` and `allowed_dec"):
        InterruptConfig(config)


@pytest.mark.parametrize("misspelled", ["alloweddecisions", "allowed-decisions"])
def test_any_other_spelling_is_still_no_gate(misspelled: str) -> None:
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
