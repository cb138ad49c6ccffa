"""A program runs an agent that nobody edited, with a gateway here or elsewhere."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, TypedDict, cast

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from keyturn.gateway.approvals.decisions import Edit, Respond
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.program_runs import GivenUp
from keyturn.gateway.store.store import Store
from tests.api.remote_program import remote_program
from tests.dialects import sample_agents
from tests.dialects.sample_agents import KINDS, Agent
from tests.resume.programs import asked, begin, decide, in_process, items_of
from tests.resume.resume_stack import AT_ONCE, POLICY

TOOLS = "tools:\n  look: {tier: auto}\n  pay: {tier: approve}"
RULES = load_policy(POLICY.replace("tools:", TOOLS), "policy.yml")
SHORT = load_policy(POLICY.replace("expires_in: 1h", "expires_in: 1s"), "policy.yml")
OPTIONS: Any = {"own_gate": ["shop"], "ungated": {"shop": ["look"]}}


@pytest.fixture(params=["here", "elsewhere"])
async def tk(
    request: pytest.FixtureRequest, store: Store, tmp_path: Path
) -> AsyncGenerator[Keyturn]:
    """Give a program whose gateway is in its process, and one with an API key."""
    if request.param == "here":
        async with in_process(store, tmp_path, policy=RULES, **OPTIONS) as here:
            yield here
        return
    async with remote_program(
        store, RULES, tmp_path, retries=AT_ONCE, **OPTIONS
    ) as elsewhere:
        yield elsewhere


def stock(**options: Any) -> tuple[Agent, Any]:
    """Return a stock agent, and its graph without a checkpointer."""
    agent = sample_agents.langchain({"pay": KINDS}, **options)
    return agent, agent.graph.copy(update={"checkpointer": None})


@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_a_run_hands_peoples_decision_over(tk: Keyturn, mode: str) -> None:
    agent, graph = stock(mode=mode)
    call = {"name": "pay", "args": {"order": "7", "amount": 7.0}}
    run = begin(tk, graph, agent.given([call]))
    item = await asked(tk)
    assert item.handed_to == "agent shop"
    await decide(tk, item, Edit(args={"order": "7", "amount": 5}, reason="half"))
    final = await run

    assert "__interrupt__" not in final
    assert agent.effects == [("pay", {"order": "7", "amount": 5.0})]
    assert [one.state for one in await items_of(tk)] == [ItemState.HANDED_OVER]


class _State(TypedDict):
    said: list[str]


def asking(_: _State) -> dict[str, Any]:
    """Ask a plain question in the graph's own code."""
    return {"said": [interrupt("Which account?")]}


def plain() -> Any:
    """Make a graph that asks a plain question."""
    builder: Any = StateGraph(_State)
    builder.add_node("asking", cast("Callable[..., Any]", asking))
    builder.add_edge(START, "asking")
    return builder.compile()


async def test_a_plain_question_gets_a_persons_answer(tk: Keyturn) -> None:
    run = begin(tk, plain(), {"said": []})
    await decide(tk, await asked(tk), Respond(answers=("DE-7",)))

    assert (await run)["said"] == ["DE-7"]


async def test_a_plain_question_is_left_alone(store: Store, tmp_path: Path) -> None:
    async with in_process(store, tmp_path, policy=SHORT, **OPTIONS) as tk:
        with pytest.raises(GivenUp, match="did not answer a question"):
            await begin(tk, plain(), {"said": []})


async def test_a_program_may_get_the_question(store: Store, tmp_path: Path) -> None:
    options = {"ungated": {"shop": ["pay", "look"]}}
    agent, graph = stock()
    async with in_process(store, tmp_path, policy=RULES, **options) as tk:
        call = {"name": "pay", "args": {"order": "7", "amount": 7.0}}
        final = await begin(tk, graph, agent.given([call]))

    assert json.dumps(final["__interrupt__"][0].value).startswith('{"action_requests"')
    assert agent.effects == []
