"""`gated_subagents` puts the gate into every subagent of a deepagent."""

from __future__ import annotations

from typing import Any, cast

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import ApprovalMiddleware, gated_subagents
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.errors import GraphError
from keyturn.gateway.protocol.records import Tier
from tests.agent.agent_runner import Effects, Runner, by_call, item_of, pay
from tests.agent.fake_gateway import FakeGateway

TIERS = {"task": Tier.AUTO}
PAYER: dict[str, Any] = {
    "name": "payer",
    "description": "Pays.",
    "system_prompt": "Pay.",
}
FORKED = {**PAYER, "name": "forked", "mode": "fork"}


def _deep(
    gateway: FakeGateway, effects: Effects, kind: str, subagents: list[Any]
) -> Any:
    args = {"description": "pay ada", "subagent_type": kind}
    # One model serves both: the parent delegates, then the subagent pays.
    replies = [
        calling(("task", args, "t1")),
        pay(9),
        AIMessage("paid"),
        AIMessage("ok"),
    ]
    return cast("Any", create_deep_agent)(
        model=scripted(replies),
        tools=effects.tools(is_guarded=False),
        subagents=subagents,
        middleware=[ApprovalMiddleware("boss", gateway=gateway)],
        checkpointer=InMemorySaver(),
    )


@pytest.mark.parametrize("kind", ["general-purpose", "payer", "forked"])
async def test_a_call_of_any_subagent_waits_for_a_person_and_then_runs(
    runner: Runner, effects: Effects, kind: str
) -> None:
    gateway = FakeGateway(TIERS)
    gated = gated_subagents([PAYER, FORKED], agent="boss", gateway=gateway)
    graph = _deep(gateway, effects, kind, gated)

    await runner.say(graph, "pay ada")
    before = list(effects.paid)
    gateway.approve(item_of(gateway, "c1").id)
    end = await runner.resume(graph, gateway)

    assert before == []
    assert effects.paid == [(9, "ada")]
    assert by_call(end)["t1"].text == "paid"


async def test_what_langchains_gate_of_a_subagent_held_is_held_once(
    runner: Runner, effects: Effects
) -> None:
    gateway = FakeGateway({**TIERS, "pay": Tier.AUTO})
    spec = {**PAYER, "interrupt_on": {"pay": True}}
    gated = gated_subagents([spec], agent="boss", gateway=gateway)
    graph = _deep(gateway, effects, "payer", gated)

    await runner.say(graph, "pay ada")
    gateway.approve(item_of(gateway, "c1").id)
    end = await runner.resume(graph, gateway)

    assert effects.paid == [(9, "ada")]
    assert "__interrupt__" not in end


def test_a_subagent_with_a_gate_is_left_as_it_is() -> None:
    own = {**PAYER, "middleware": [ApprovalMiddleware("payer")]}
    elsewhere = {"name": "far", "description": "Runs elsewhere.", "graph_id": "far"}

    gated = gated_subagents([own, elsewhere], general_purpose=False)

    assert gated == [own, elsewhere]


def test_a_listed_general_purpose_subagent_is_gated_and_not_doubled() -> None:
    listed = {**PAYER, "name": "general-purpose", "skills": ["/skills/"]}

    (gated,) = gated_subagents([listed], agent="boss")

    assert gated["skills"] == ["/skills/"]
    assert [type(one) for one in gated["middleware"]] == [ApprovalMiddleware]


def test_a_compiled_subagent_without_a_gate_is_refused(effects: Effects) -> None:
    tools = effects.tools(is_guarded=False)
    make = cast("Any", create_agent)
    bare = make(scripted([]), tools)
    gate = ApprovalMiddleware("payer")
    gated = make(scripted([]), tools, middleware=[gate])
    spec = {"name": "payer", "description": "Pays."}

    with pytest.raises(GraphError, match=r"'payer' can start .* 'look_up', 'pay'"):
        gated_subagents([{**spec, "runnable": bare}])

    good = {**spec, "runnable": gated}
    assert gated_subagents([good], general_purpose=False) == [good]
