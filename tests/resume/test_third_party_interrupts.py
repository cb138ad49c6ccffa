"""A question of another library inside a gated agent is put to people, and ends."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.tools import tool
from langgraph.pregel import Pregel
from langgraph.types import Command, interrupt

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.gateway.approvals.decisions import Respond
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Item
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


@tool
def wire(order: str) -> str:
    """Wire money from an account that a person names."""
    account = interrupt("Which account? <!channel> *now*")
    sample_tools.note(f"wire {order} from {account}")
    return f"wired {order}"


@tool
def odd(order: str) -> str:
    """Ask in a form that only resembles one."""
    interrupt({"action_requests": [f"<!channel> {order}"]})
    sample_tools.note(f"odd {order}")
    return "odd"


def graph() -> Pregel[Any, Any, Any, Any]:
    """Make an agent whose tools ask."""
    make = cast("Callable[..., Pregel[Any, Any, Any, Any]]", create_agent)
    return make(
        sample_tools.obedient(),
        tools=[guarded(wire), guarded(odd), guarded(sample_tools.refund)],
        middleware=[
            ApprovalMiddleware("shop"),
        ],
    )


@pytest.fixture
async def stack(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give a gateway with that agent; people have an hour."""
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        opened = Stack(store, Runner(attached(graph(), saver), hands_over=True))
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


async def question(stack: Stack) -> Item:
    """Wait for the question inside a tool; return its item."""

    async def is_so() -> bool:
        return any(item.is_question for item in await stack.items())

    await eventually(is_so)
    return next(item for item in await stack.items() if item.is_question)


async def test_a_person_answers_inside_an_approved_tool(stack: Stack) -> None:
    async with stack.working():
        await wired(stack)
        item = await question(stack)
        assert item.questions[0].question == "Which account? <!channel> *now*"
        await stack.decide(item, Respond(answers=("DE-7",)))
        assert await stack.words() == "wired 7"

    assert sample_tools.ledger() == ["wire 7 from DE-7"]
    assert await stack.states() == [ItemState.EXECUTED, ItemState.ANSWERED]


@pytest.mark.slow
async def test_a_question_without_answer_ends_its_run_visibly(stack: Stack) -> None:
    async with stack.working():
        await wired(stack)
        await told(stack, EventName.RUN_UNANSWERED)
        await stack.idle()
        assert await stack.states() == [ItemState.LAPSED, ItemState.EXPIRED]

        await stack.say("and now?")
        words = await stack.words()

    assert sample_tools.ledger() == []
    assert words == "You said and now?"


@pytest.mark.slow
async def test_the_programs_owner_may_answer_it(stack: Stack) -> None:
    async with stack.working():
        await wired(stack)
        await question(stack)
    [asked] = (await stack.runner.probe("t1")).pending
    compiled = cast("Any", stack.runner)._graph
    async with stack.working() as gateway:
        with connected(gateway):
            answer: Command[Any] = Command(resume={asked.id: "DE-9"})
            await compiled.ainvoke(answer, {"configurable": {"thread_id": "t1"}})
        resume = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
        await stack.store.queue(stack.keys).put(resume)
        assert await stack.words() == "wired 7"

    assert sample_tools.ledger() == ["wire 7 from DE-9"]
    assert await stack.states() == [ItemState.EXECUTED, ItemState.WITHDRAWN]


@pytest.mark.slow
async def test_an_unknown_question_is_shown_as_data(stack: Stack) -> None:
    stack.policy = load_policy(
        (POLICY + "  odd: {tier: auto}\n").replace("expires_in: 1h", "expires_in: 2s"),
        "policy.yml",
    )
    async with stack.working():
        await stack.ask(("odd", {"order": "7"}))
        event = await told(stack, EventName.RUN_ASKED)
        await told(stack, EventName.RUN_UNANSWERED)

    assert json.loads(event.data["text"]) == {"action_requests": ["<!channel> 7"]}
    assert event.data["channel"] == "C0SHOP"
    audited = [
        one
        for one in await audit_entries(stack.store.conn, stack.keys)
        if one.name is EventName.RUN_ASKED
    ]
    assert [one.data.get("text") for one in audited] == [None]
    assert sample_tools.ledger() == []


async def test_unknown_data_is_hidden_as_the_policy_says(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(("odd", {"order": "7"}))
        [item] = await stack.asked()
        await stack.decide(item)
        event = await told(stack, EventName.RUN_ASKED)

    assert event.data["text"] == (
        "Its data is not shown, because the policy hides arguments."
    )
