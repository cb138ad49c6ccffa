"""An interrupt of another library is shown with its question, and ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.pregel import Pregel
from langgraph.types import Command, interrupt

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.port import connected
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.runs.jobs import Job, JobKind
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import POLICY, Stack
from tests.streams import audit_entries

ASKING = """
  wire: {tier: approve}
  pay: {tier: auto, redact: [args.card]}
"""
LONG = load_policy(POLICY + ASKING, "policy.yml")
SHORT = load_policy(
    (POLICY + ASKING)
    .replace("expires_in: 1h", "expires_in: 1s")
    .replace("refund: {tier: approve}", "refund: {tier: approve, expires_in: 60m}"),
    "policy.yml",
)
PAY = ("pay", {"order": "7", "card": "4111111111111111"})


@tool
def wire(order: str) -> str:
    """Wire money from an account that a person names."""
    account = interrupt("Which account? <!channel> *now*")
    sample_tools.note(f"wire {order} from {account}")
    return f"wired {order}"


@tool
def pay(order: str, card: str) -> str:
    """Pay with a card."""
    sample_tools.note(f"pay {order} {card[-4:]}")
    return f"paid {order}"


def graph() -> Pregel[Any, Any, Any, Any]:
    """Make an agent whose tool asks, and another library's gate before a tool."""
    make = cast("Callable[..., Pregel[Any, Any, Any, Any]]", create_agent)
    return make(
        sample_tools.obedient(),
        tools=[guarded(wire), guarded(pay), guarded(sample_tools.refund)],
        middleware=[
            HumanInTheLoopMiddleware({"pay": True}),
            ApprovalMiddleware("shop"),
        ],
    )


@pytest.fixture
async def stack(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give a gateway with that agent; people have an hour."""
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        opened = Stack(store, Runner(attached(graph(), saver)))
        opened.policy = LONG
        yield opened


async def told(stack: Stack, name: EventName) -> Event:
    """Wait for a notification about the run; return it."""

    async def is_so() -> bool:
        return bool(await stack.events(name))

    await eventually(is_so)
    [event] = await stack.events(name)
    return event


async def wired(stack: Stack) -> None:
    """Have a wire approved, which then asks for an account."""
    await stack.ask(("wire", {"order": "7"}))
    [item] = await stack.asked()
    stack.policy = SHORT
    await stack.decide(item)


async def test_a_question_in_an_approved_tool_is_told_where_the_agent_was_asked(
    stack: Stack,
) -> None:
    async with stack.working():
        await wired(stack)
        event = await told(stack, EventName.RUN_ASKED)

    assert event.data["text"] == "Which account? <!channel> *now*"
    assert (event.data["channel"], event.data["ends"]) == ("C0SHOP", "ended")
    audited = [
        one
        for one in await audit_entries(stack.store.conn, stack.keys)
        if one.name is EventName.RUN_ASKED
    ]
    assert [one.data.get("text") for one in audited] == [None]


@pytest.mark.slow
async def test_nobodys_words_are_never_its_answer_and_the_run_ends_visibly(
    stack: Stack,
) -> None:
    async with stack.working():
        await wired(stack)
        ended = await told(stack, EventName.RUN_UNANSWERED)
        await stack.idle()
        assert ended.data["ends"] == "ended"
        assert await stack.states() == [ItemState.LAPSED]

        await stack.say("and now?")
        words = await stack.words()

    assert sample_tools.ledger() == []
    assert words == "You said and now?"


@pytest.mark.slow
async def test_a_gate_of_another_library_is_told_redacted_and_refuses_in_the_end(
    stack: Stack,
) -> None:
    stack.policy = SHORT
    async with stack.working():
        await stack.ask(PAY)
        event = await told(stack, EventName.RUN_ASKED)
        ended = await told(stack, EventName.RUN_UNANSWERED)
        words = await stack.words()

    assert "pay" in event.data["text"]
    assert "4111111111111111" not in event.data["text"]
    assert ended.data["ends"] == "answered"
    assert "was not answered in time" in words
    assert sample_tools.ledger() == []


@pytest.mark.slow
async def test_a_call_behind_the_gate_of_another_library_goes_on_waiting(
    stack: Stack,
) -> None:
    stack.policy = SHORT
    async with stack.working():
        await stack.ask(PAY, ("refund", {"order": "1", "amount": 5}))
        await told(stack, EventName.RUN_ASKED)
        [item] = await stack.items()
        assert item.state is ItemState.PENDING
        await stack.decide(item)
        words = await stack.words()

    assert "refunded 1 5" in words
    assert [line.split()[0] for line in sample_tools.ledger()] == ["refund"]


@pytest.mark.slow
async def test_somebody_who_runs_the_agent_may_answer_it_by_themselves(
    stack: Stack,
) -> None:
    async with stack.working():
        await stack.ask(PAY)
        await told(stack, EventName.RUN_ASKED)
    [asked] = (await stack.runner.probe("t1")).pending
    compiled = cast("Any", stack.runner)._graph
    answer: Command[Any] = Command(
        resume={asked.id: {"decisions": [{"type": "approve"}]}}
    )
    async with stack.working() as gateway:
        with connected(gateway):
            await compiled.ainvoke(answer, {"configurable": {"thread_id": "t1"}})
        resume = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
        await stack.store.queue(stack.keys).put(resume)
        assert await stack.words() == "paid 7"

    assert sample_tools.ledger() == ["pay 7 1111"]
    assert await stack.events(EventName.RUN_UNANSWERED) == []
