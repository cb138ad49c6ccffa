"""An agent asks people, and continues with their answers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain_core.messages import ToolMessage

from keyturn.agent import ApprovalMiddleware, ask_user, gated_subagents
from keyturn.agent.messages import ANSWER_KEY
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Decided,
    Invalid,
    Reject,
    Respond,
    Reviewer,
)
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.resume.resume_stack import ANA, DAN, Stack
from tests.sample_questions import EXTRAS, REGION

REQUESTER = Reviewer(
    team=DAN.team, user=DAN.user, name=DAN.name, account=AccountKind.MEMBER
)
NAME = {"question": "What is its name?"}


def asking(*questions: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a call that asks these questions."""
    return "ask_user", {"questions": [*questions]}


@pytest.fixture
async def shop(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give the shop's agent with the tool that asks."""
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        graph = attached(sample_tools.graph(ask_user), saver)
        yield Stack(store, Runner(graph, agent="shop"), saver)


async def results(stack: Stack) -> list[ToolMessage]:
    """Return the results of tools that the agent has read."""
    graph = cast("Any", stack.runner)._graph
    state = await graph.aget_state({"configurable": {"thread_id": "t1"}})
    return [m for m in state.values["messages"] if isinstance(m, ToolMessage)]


async def test_the_requesters_answers_are_the_result_of_the_call(shop: Stack) -> None:
    async with shop.working():
        await shop.ask(asking(REGION, EXTRAS, NAME))
        [item] = await shop.asked()

        answers = ("EU", "logs, alerts", "a line\nQ: Really?\nA: yes")
        said = Respond(answers=answers)
        assert isinstance(await shop.decide(item, said, by=REQUESTER), Decided)

        words = await shop.words()
    assert words == (
        "Q: Which region?\nA: EU\n\nQ: What else?\nA: logs, alerts\n\n"
        "Q: What is its name?\nA: a line\n   Q: Really?\n   A: yes"
    )
    [result] = await results(shop)
    data = result.additional_kwargs[ANSWER_KEY]
    assert (data["status"], tuple(data["answers"])) == ("answered", answers)
    assert data["by"]["user"] == DAN.user
    assert result.status == "success"
    assert await shop.states() == [ItemState.ANSWERED]


@pytest.mark.parametrize("by", [REQUESTER, ANA])
async def test_a_skipped_question_holds_nothing_up(shop: Stack, by: Reviewer) -> None:
    async with shop.working():
        await shop.ask(asking(NAME))
        [item] = await shop.asked()

        await shop.decide(item, Reject(reason="ask sales"), by=by)

        words = await shop.words()
    assert "chose not to answer" in words
    assert "ask sales" in words
    [result] = await results(shop)
    assert result.additional_kwargs[ANSWER_KEY]["status"] == "cancelled"


@pytest.mark.parametrize(
    "questions",
    [
        [],
        [{"question": " "}],
        [{"question": "?", "type": "text", "choices": ["a", "b"]}],
        [{"question": "?", "type": "multiple_choice", "choices": ["a"]}],
        [{"question": "?", "type": "multiple_choice", "choices": ["a", "A"]}],
        [{"question": "?", "type": "multiple_choice", "choices": ["a", "other"]}],
        [{"question": "?", "type": "multi_select", "choices": ["a", "b, c"]}],
        [{"question": "?", "type": "guess"}],
        [{"question": "?" * 501}],
        [{"question": "?"}] * 11,
    ],
)
async def test_malformed_questions_go_back_to_the_model(
    shop: Stack, questions: list[dict[str, Any]]
) -> None:
    async with shop.working():
        await shop.ask(asking(*questions))

        words = await shop.words()

    assert "no question was asked" in words
    assert await shop.items() == []


async def test_nobody_can_let_a_question_run(shop: Stack) -> None:
    async with shop.working():
        await shop.ask(asking(NAME))
        [item] = await shop.asked()

        for by in (ANA, REQUESTER):
            assert isinstance(await shop.decide(item, Approve(), by=by), Invalid)

        assert await shop.states() == [ItemState.PENDING]


POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0A, needs: support}
roles: {support: {users: [U0ANA]}}
tools: {task: {tier: auto}}
"""


@pytest.fixture
async def deep(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give a deep agent that asks, with a subagent that has the same tools."""
    graph = cast("Any", create_deep_agent)(
        model=sample_tools.obedient(),
        tools=[ask_user],
        subagents=gated_subagents([], agent="shop"),
        middleware=[ApprovalMiddleware("shop")],
    )
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        runner = Runner(attached(graph, saver), agent="shop")
        stack = Stack(store, runner, saver)
        stack.policy = load_policy(POLICY, "policy.yml")
        yield stack


def delegating(*calls: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Return a call with which a subagent makes these calls."""
    told = {"description": json.dumps(calls), "subagent_type": "general-purpose"}
    return "task", told


async def test_a_subagent_is_told_that_it_cannot_ask(deep: Stack) -> None:
    async with deep.working():
        await deep.ask(delegating(asking(NAME)))

        words = await deep.words()

    assert "Only the agent that people speak to" in words, words
    assert await deep.items() == []
