"""What waits inside a tool ends with a new message, and with its thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.pregel import Pregel
from langgraph.types import Command, interrupt

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.gateway.approvals.decisions import Forbidden, Respond, Stale
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.embed import Keyturn, running
from keyturn.gateway.errors import ThreadUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.http_api import connected
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner, Runners
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.runs.jobs import Job, JobKind
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.programs import (
    AT,
    asked,
    begin,
    calling_tools,
    decide,
    in_process,
    items_of,
)
from tests.resume.resume_stack import DAN, POLICY, Stack
from tests.service.harness import person
from tests.streams import audit_entries

FREE = load_policy(POLICY + "  delegate: {tier: auto}\n", "policy.yml")
LOOK = json.dumps([["look_up", {"order": "1"}]])
ONE = json.dumps([["refund", {"order": "1", "amount": 5}]])


def payer() -> Pregel[Any, Any, Any, Any]:
    """Make an agent that pays, under a name that no settings know."""
    make = cast("Callable[..., Pregel[Any, Any, Any, Any]]", create_agent)
    return make(
        sample_tools.obedient(),
        tools=[guarded(sample_tools.refund)],
        middleware=[ApprovalMiddleware("payer")],
    )


@tool
async def delegate(task: str) -> str:
    """Call another agent that acts."""
    inner = cast("Any", payer())
    state = await inner.ainvoke({"messages": [HumanMessage(task)]})
    return str(state["messages"][-1].text)


@tool("delegate")
async def delegate_twice(task: str) -> str:
    """Call an agent that looks something up, and then one that pays."""
    looking = cast("Any", sample_tools.graph())
    await looking.ainvoke({"messages": [HumanMessage(LOOK)]})
    paying = cast("Any", payer())
    state = await paying.ainvoke({"messages": [HumanMessage(task)]})
    return str(state["messages"][-1].text)


class Nested(Stack):
    """A stack whose agent calls another one that pays, auto-approved."""

    def __init__(self, store: Store, runner: Runner) -> None:
        super().__init__(store, runner)
        self.reviews = ReviewService(store, lambda: FREE)

    def working(self, **options: Any) -> Any:
        return running(
            self.store, lambda: FREE, Runners(self.runners, self.saver), **options
        )

    async def delegated(self) -> Item:
        """Make the inner agent request a refund."""
        await self.ask(("delegate", {"task": ONE}))
        [item] = await self.asked()
        assert item.ctx.agent == "payer"
        await self.idle()
        return item

    def with_graph(self, graph: Pregel[Any, Any, Any, Any]) -> None:
        """Run another graph under the same name, on the same checkpoints."""
        saver = cast("Any", self.runner)._graph.checkpointer
        self.runner = Runner(attached(graph, saver))
        self.runners["shop"] = self.runner


@pytest.fixture
async def stack(store: Store, tmp_path: Path) -> AsyncGenerator[Nested]:
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        graph = sample_tools.graph(delegate)
        yield Nested(store, Runner(attached(graph, saver)))


async def test_an_inner_agent_of_another_name_is_answered(stack: Nested) -> None:
    async with stack.working():
        item = await stack.delegated()

        mine = await stack.decide(item, by=person("U0DAN"))
        await stack.decide(item)

        assert await stack.words() == "refunded 1 5"
    assert isinstance(mine, Forbidden), "Dan asked for it, outside"
    assert await stack.states() == [ItemState.EXECUTED]
    approval = (await stack.approvals())[0]
    assert approval.requester == DAN
    assert approval.origin is not None


async def test_two_agents_in_one_tool_end_separately(stack: Nested) -> None:
    stack.with_graph(sample_tools.graph(delegate_twice))
    async with stack.working():
        await stack.ask(("delegate", {"task": ONE}))
        [item] = await stack.asked()
        assert item.ctx.ns.endswith("|1")
        await stack.idle()
        await stack.decide(item)

        assert await stack.words() == "refunded 1 5"
    assert await stack.states() == [ItemState.EXECUTED]


@pytest.mark.parametrize("words", ["never mind", LOOK])
async def test_a_new_message_ends_inner_calls(stack: Nested, words: str) -> None:
    async with stack.working():
        item = await stack.delegated()

        await stack.say(words)
        await stack.words()
        late = await stack.decide(item)
        await stack.idle()

    assert isinstance(late, Stale)
    assert late.item.state is ItemState.SUPERSEDED
    [told] = await stack.events(EventName.ITEM_SUPERSEDED)
    assert (told.item, told.run_ref.agent) == (item.id, "shop")
    assert not [line for line in sample_tools.ledger() if line.startswith("refund")]


GRAPH = sample_tools.graph(delegate)


@pytest.fixture
async def tk(store: Store, tmp_path: Path) -> AsyncGenerator[Keyturn]:
    """Open a program with an agent that calls another one, which pays."""
    async with in_process(store, tmp_path, policy=FREE) as opened:
        yield opened


async def waiting(tk: Keyturn) -> tuple[asyncio.Task[dict[str, Any]], Item]:
    """Make the inner agent ask; return the run and the call."""
    given = calling_tools(("delegate", {"task": ONE}))
    run = begin(tk, GRAPH, given, timeout_s=60)
    return run, await asked(tk)


async def states(tk: Keyturn) -> list[ItemState]:
    """Return the states of the thread's calls."""
    return [item.state for item in await items_of(tk)]


async def test_a_deleted_threads_calls_are_superseded(tk: Keyturn) -> None:
    run, item = await waiting(tk)

    await tk.delete(GRAPH, **AT)

    assert await states(tk) == [ItemState.SUPERSEDED]
    late = await decide(tk, item)
    assert isinstance(late, Stale)
    assert late.item.state is ItemState.SUPERSEDED
    with pytest.raises(ThreadUnavailable, match="was deleted"):
        await run
    with pytest.raises(ThreadUnavailable, match="There is no thread"):
        await tk.run(GRAPH, **AT)
    assert sample_tools.ledger() == []


async def test_a_thread_that_somebody_runs_is_not_deleted(tk: Keyturn) -> None:
    run, item = await waiting(tk)
    keys = tk.store.keys_of_tenant("default")

    async with tk.store.threads.lease(keys, "shop", "t1"):
        with pytest.raises(ThreadUnavailable, match="Another process"):
            await tk.delete(GRAPH, **AT)

    assert await states(tk) == [ItemState.PENDING]
    await decide(tk, item)
    assert (await run)["messages"][-1].text == "refunded 1 5"


# A question of another library inside a gated agent is put to people, and ends.


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
async def asking_stack(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give a gateway with that agent; people have an hour."""
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        opened = Stack(store, Runner(attached(graph(), saver), hands_over=True))
        opened.policy = LONG
        yield opened


async def told(asking_stack: Stack, name: EventName) -> Event:
    """Wait for a notification about the run; return it."""

    async def is_so() -> bool:
        return bool(await asking_stack.events(name))

    await eventually(is_so)
    [event] = await asking_stack.events(name)
    return event


async def wired(asking_stack: Stack) -> None:
    """Have a wire approved, which then asks for an account."""
    await asking_stack.ask(("wire", {"order": "7"}))
    [item] = await asking_stack.asked()
    asking_stack.policy = SHORT
    await asking_stack.decide(item)


async def question(asking_stack: Stack) -> Item:
    """Wait for the question inside a tool; return its item."""

    async def is_so() -> bool:
        return any(item.is_question for item in await asking_stack.items())

    await eventually(is_so)
    return next(item for item in await asking_stack.items() if item.is_question)


async def test_a_person_answers_inside_an_approved_tool(asking_stack: Stack) -> None:
    async with asking_stack.working():
        await wired(asking_stack)
        item = await question(asking_stack)
        assert item.questions[0].question == "Which account? <!channel> *now*"
        await asking_stack.decide(item, Respond(answers=("DE-7",)))
        assert await asking_stack.words() == "wired 7"

    assert sample_tools.ledger() == ["wire 7 from DE-7"]
    assert await asking_stack.states() == [ItemState.EXECUTED, ItemState.ANSWERED]


@pytest.mark.slow
async def test_a_question_without_answer_ends_its_run_visibly(
    asking_stack: Stack,
) -> None:
    async with asking_stack.working():
        await wired(asking_stack)
        await told(asking_stack, EventName.RUN_UNANSWERED)
        await asking_stack.idle()
        assert await asking_stack.states() == [ItemState.LAPSED, ItemState.EXPIRED]

        await asking_stack.say("and now?")
        words = await asking_stack.words()

    assert sample_tools.ledger() == []
    assert words == "You said and now?"


@pytest.mark.slow
async def test_the_programs_owner_may_answer_it(asking_stack: Stack) -> None:
    async with asking_stack.working():
        await wired(asking_stack)
        await question(asking_stack)
    [asked] = (await asking_stack.runner.probe("t1")).pending
    compiled = cast("Any", asking_stack.runner)._graph
    async with asking_stack.working() as gateway:
        with connected(gateway):
            answer: Command[Any] = Command(resume={asked.id: "DE-9"})
            await compiled.ainvoke(answer, {"configurable": {"thread_id": "t1"}})
        resume = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
        await asking_stack.store.queue(asking_stack.keys).put(resume)
        assert await asking_stack.words() == "wired 7"

    assert sample_tools.ledger() == ["wire 7 from DE-9"]
    assert await asking_stack.states() == [ItemState.EXECUTED, ItemState.WITHDRAWN]


@pytest.mark.slow
async def test_an_unknown_question_is_shown_as_data(asking_stack: Stack) -> None:
    asking_stack.policy = load_policy(
        (POLICY + "  odd: {tier: auto}\n").replace("expires_in: 1h", "expires_in: 2s"),
        "policy.yml",
    )
    async with asking_stack.working():
        await asking_stack.ask(("odd", {"order": "7"}))
        event = await told(asking_stack, EventName.RUN_ASKED)
        await told(asking_stack, EventName.RUN_UNANSWERED)

    assert json.loads(event.data["text"]) == {"action_requests": ["<!channel> 7"]}
    assert event.data["channel"] == "C0SHOP"
    audited = [
        one
        for one in await audit_entries(asking_stack.store.conn, asking_stack.keys)
        if one.name is EventName.RUN_ASKED
    ]
    assert [one.data.get("text") for one in audited] == [None]
    assert sample_tools.ledger() == []


async def test_unknown_data_is_hidden_as_the_policy_says(asking_stack: Stack) -> None:
    async with asking_stack.working():
        await asking_stack.ask(("odd", {"order": "7"}))
        [item] = await asking_stack.asked()
        await asking_stack.decide(item)
        event = await told(asking_stack, EventName.RUN_ASKED)

    assert event.data["text"] == (
        "Its data is not shown, because the policy hides arguments."
    )
