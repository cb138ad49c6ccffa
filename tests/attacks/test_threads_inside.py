"""The people of the enclosing run count as requesters of a nested agent's calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import guarded
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import TooManySpeakers
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.runs.threads import MAX_PRINCIPALS
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import DAN, RULES, Stack
from tests.service.harness import ServiceHarness
from tests.store_secrets import SECRETS

REFUND = [["refund", {"order": "1", "amount": 5}]]
RUNNING: list[Keyturn] = []
OWN: RunnableConfig = {"configurable": {"thread_id": "own"}}


@tool
async def hand_on(task: str) -> str:
    """Call another agent in a separate thread."""
    given = {"messages": [{"role": "user", "content": task}]}
    inner = attached(sample_tools.graph(), InMemorySaver())
    await inner.ainvoke(given, OWN)  # pyright: ignore[reportUnknownMemberType] - its overloads are partial
    return "handed on"


@pytest.fixture
async def stack(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Stack]:
    """Give a stack whose agent hands tasks on."""
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "ledger.txt"))
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        graph = sample_tools.graph(guarded(hand_on))
        yield Stack(store, Runner(attached(graph, saver)))


@pytest.mark.slow
async def test_the_outer_requester_is_an_inner_principal(stack: Stack) -> None:
    async with stack.working():
        opened = await opened_inside(stack)

    assert [*opened.principals] == [DAN]


async def opened_inside(stack: Stack) -> Approval:
    """Make the agent delegate a refund; wait for the inner agent's request."""
    opened: list[Approval] = []

    async def is_opened() -> bool:
        opened[:] = await stack.approvals("own")
        return bool(opened)

    await stack.ask(("hand_on", {"task": json.dumps(REFUND)}))
    [outer] = await stack.asked()
    await stack.decide(outer)
    await eventually(is_opened)
    return opened[0]


@tool
async def hand_on_by_run(task: str) -> str:
    """Call another agent in a separate run."""
    given = {"messages": [{"role": "user", "content": task}]}
    keyturn = RUNNING[0]
    await keyturn.run(sample_tools.graph, given, thread_id="own", agent="shop")
    return "handed on"


@pytest.mark.slow
async def test_a_run_that_a_tool_starts_knows_them_too(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "ledger.txt"))
    graph = sample_tools.graph(guarded(hand_on_by_run))
    given = {
        "messages": [
            ("user", json.dumps([("hand_on_by_run", {"task": json.dumps(REFUND)})]))
        ]
    }
    async with Keyturn(
        policy=RULES,
        url=store.conn.url,
        secrets=SECRETS,
        data_dir=tmp_path,
        keyring=store.keyring,
    ) as tk:
        RUNNING[:] = [tk]
        stack = Stack(store, await tk._runner(graph, "shop"))  # pyright: ignore[reportPrivateUsage] - to look at its threads
        run = asyncio.create_task(
            tk.run(graph, given, thread_id="t1", agent="shop", requester=DAN)
        )
        await stack.decide((await stack.asked())[0])
        [inner] = await stack.asked(thread="own")
        [approval] = await stack.approvals("own")
        await stack.decide(inner)
        await run

    assert [*approval.principals] == [DAN]


async def test_too_many_people_need_a_new_thread(store: Store) -> None:
    stack = ServiceHarness(store)
    people = [Person(team="T0", user=f"U{n}") for n in range(MAX_PRINCIPALS + 1)]

    async def ask(person: Person) -> None:
        await stack.reviews.ask_agent("a", "t1", "hi", requester=person, origin=None)

    for person in people[:-1]:
        await ask(person)
    with pytest.raises(TooManySpeakers, match="start a new thread"):
        await ask(people[-1])
    await ask(people[0])

    keys = store.keys_of_tenant("default")
    facts = await store.threads.facts(keys, "a", "t1")
    assert {one.user for one in facts.principals} == {one.user for one in people[:-1]}
