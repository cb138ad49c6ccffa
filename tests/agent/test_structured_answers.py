"""A model reads why its call did not run, also if it gave a structured answer."""

from __future__ import annotations

from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads name generics without parameters
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from keyturn.agent import ApprovalMiddleware
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.protocol.records import Tier
from tests.agent.agent_runner import Effects, Runner, by_call
from tests.agent.fake_gateway import FakeGateway


class Report(BaseModel):
    """What the agent answers with."""

    done: bool


PAY = ("pay", {"amount": 1, "to": "ada"}, "c1")
SAYS_DONE = ("Report", {"done": True}, "r1")
SAYS_NOT = ("Report", {"done": False}, "r2")
ENDS = ("reject", "respond", "expire", "deny", "approve")


@pytest.mark.parametrize("end", ENDS)
async def test_a_structured_answer_beside_a_call_is_given_again_unless_it_ran(
    runner: Runner, effects: Effects, end: str
) -> None:
    gateway = FakeGateway({"pay": Tier.DENY if end == "deny" else Tier.APPROVE})
    model = scripted([calling(PAY, SAYS_DONE), calling(SAYS_NOT), AIMessage("no more")])
    graph = cast("Any", create_agent)(
        model,
        effects.tools(),
        middleware=[ApprovalMiddleware("support", gateway=gateway)],
        response_format=ToolStrategy(Report),
        checkpointer=InMemorySaver(),
    )

    state = await runner.say(graph, "pay")
    if end == "expire":
        gateway.end("ap0.0", Transition.EXPIRE)
    elif end in {"reject", "respond"}:
        getattr(gateway, end)("ap0.0", "she has enough")
    elif end == "approve":
        gateway.approve("ap0.0")
    if end != "deny":
        state = await runner.resume(graph, gateway)

    has_run = end == "approve"
    assert state["structured_response"] == Report(done=has_run)
    assert len(model.seen) == (1 if has_run else 2)
    if not has_run:
        assert by_call(state)["c1"].text in str(model.seen[-1])
