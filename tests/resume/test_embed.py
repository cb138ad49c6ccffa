"""Run an agent inside any program, and wait durably."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from keyturn.gateway.approvals.decisions import Approve, Click, Decided, Edit, Forbidden
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.config import Settings
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError, SettingsError, ThreadUnavailable
from keyturn.gateway.protocol.records import Person, RunRef
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.store.store import Store
from tests.api.remote_program import remote_program
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import ANA, DAN, GIVING_UP, POLICY, RULES


class Name(TypedDict):
    """A state with a name in it."""

    name: str


def _ask(state: Name) -> Name:
    return {"name": f"{state['name']}{interrupt('your name?')}"}


PLACE: Any = {"thread_id": "t1", "agent": "shop"}
CALL = json.dumps([("refund", {"order": "78291", "amount": 1})])
Open = Callable[[], AbstractAsyncContextManager[Keyturn]]


@pytest.fixture(params=["in process", "http"])
def opened(store: Store, tmp_path: Path, request: pytest.FixtureRequest) -> Open:
    """Open a Keyturn on the test's store, again and again on the same data."""

    @asynccontextmanager
    async def one() -> AsyncGenerator[Keyturn]:
        if request.param == "http":
            async with remote_program(
                store, RULES, tmp_path, retries=GIVING_UP
            ) as program:
                yield program
            return
        url = store.conn.url
        async with Keyturn(
            policy=RULES, url=url, data_dir=tmp_path, retries=GIVING_UP
        ) as tk:
            yield tk

    return one


def refund(amount: float = 899.0) -> dict[str, Any]:
    """Return an input that makes the agent ask for a refund."""
    calls = [("refund", {"order": "78291", "amount": amount})]
    return {"messages": [{"role": "user", "content": json.dumps(calls)}]}


async def test_a_run_waits_for_the_approval_and_returns_the_final_state(
    opened: Open,
) -> None:
    async with opened() as tk:
        run = asyncio.create_task(
            tk.run(sample_tools.graph, refund(), thread_id="t1", agent="shop")
        )
        item = await asked(tk)
        assert not run.done()

        edit = Edit(args={"order": "78291", "amount": 449.5}, reason="half")
        assert isinstance(await decide(tk, item, edit), Decided)

        final = await run
        assert "refunded 78291 449.5" in final["messages"][-1].text
        assert len(sample_tools.ledger()) == 1


@pytest.mark.slow
async def test_a_program_that_died_goes_on_waiting_with_the_same_call(
    opened: Open,
) -> None:
    async with opened() as tk:
        run = asyncio.create_task(
            tk.run(sample_tools.graph, refund(), thread_id="t1", agent="shop")
        )
        item = await asked(tk)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await decide(tk, item)

    async with opened() as tk:
        final = await tk.run(
            sample_tools.graph, refund(), thread_id="t1", agent="shop", timeout_s=60
        )
        assert final["messages"][-1].text == "refunded 78291 899"
        same = await tk.run(sample_tools.graph, thread_id="t1", agent="shop")

    assert same["messages"] == final["messages"]
    assert len(sample_tools.ledger()) == 1


async def test_another_input_supersedes_what_waits(opened: Open) -> None:
    async with opened() as tk:
        first = asyncio.create_task(
            tk.run(sample_tools.graph, refund(), thread_id="t1", agent="shop")
        )
        await asked(tk)

        hello = {"messages": [{"role": "user", "content": "hello"}]}
        final = await tk.run(sample_tools.graph, hello, thread_id="t1", agent="shop")

        assert final["messages"][-1].text == "You said hello"
        assert (await first)["messages"][-1].text == "You said hello"
        assert sample_tools.ledger() == []


async def test_the_same_input_is_one_turn_unless_its_message_has_another_id(
    opened: Open,
) -> None:
    def hello(**more: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": "hello", **more}]}

    async with opened() as tk:
        for given in (hello(), hello()):
            final = await tk.run(
                sample_tools.graph, given, thread_id="t1", agent="shop"
            )
            assert len(final["messages"]) == 2
        final = await tk.run(
            sample_tools.graph, hello(id="2"), thread_id="t1", agent="shop"
        )

    assert [one.text for one in final["messages"]] == ["hello", "You said hello"] * 2


@pytest.mark.slow
async def test_a_wait_can_be_bounded_and_taken_up_again(opened: Open) -> None:
    async with opened() as tk:
        with pytest.raises(TimeoutError, match=r"'t1' was not finished within 0.5 s"):
            await tk.run(
                sample_tools.graph,
                refund(),
                thread_id="t1",
                agent="shop",
                timeout_s=0.5,
            )
        await decide(tk, await asked(tk))
        final = await tk.run(sample_tools.graph, thread_id="t1", agent="shop")

    assert final["messages"][-1].text == "refunded 78291 899"


async def test_who_asked_has_to_be_a_person(opened: Open) -> None:
    who: Any = "U0ANA"
    async with opened() as tk:
        with pytest.raises(TypeError, match="requester='U0ANA' is no Person"):
            await tk.run(sample_tools.graph, refund(), thread_id="t1", requester=who)


@pytest.mark.parametrize("user", ["", "ana@example.com", "@ana", "Ana", "S0ANA"])
async def test_who_asked_has_to_have_an_id_of_slack(opened: Open, user: str) -> None:
    """Another name would allow the requester to approve."""
    who = Person(team="T0", user=user)
    async with opened() as tk:
        with pytest.raises(ValueError, match="not an id of a Slack user"):
            await tk.run(
                sample_tools.graph, refund(), **PLACE, requester=who, timeout_s=5
            )


@pytest.mark.parametrize("team", ["T0", "", "E0ORGANIZATION"])
async def test_who_asked_cannot_approve(opened: Open, team: str) -> None:
    """A program's workspace is ignored: bots identify people by their own."""
    async with opened() as tk:
        run = asyncio.create_task(
            tk.run(
                sample_tools.graph,
                refund(),
                **PLACE,
                requester=ANA.person.with_(team=team),
            )
        )
        outcome = await decide(tk, await asked(tk))
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    assert isinstance(outcome, Forbidden)


async def test_an_error_of_the_graph_reaches_the_caller(opened: Open) -> None:
    broken = {"messages": [{"role": "user", "content": "break"}]}
    async with opened() as tk:
        with pytest.raises(RuntimeError, match="the model is down"):
            await tk.run(sample_tools.graph, broken, thread_id="t1", agent="shop")


async def test_an_agent_that_calls_itself_otherwise_is_named(opened: Open) -> None:
    async with opened() as tk:
        with pytest.raises(GraphError, match=r"ApprovalMiddleware\('store'\)"):
            await tk.run(sample_tools.graph, refund(), thread_id="t1", agent="store")
        for name in ("store", "shop"):
            assert await tk.pending(thread_id="t1", agent=name) == ()


async def test_without_thread_and_input_there_is_nothing_to_wait_for(
    opened: Open,
) -> None:
    async with opened() as tk:
        with pytest.raises(ThreadUnavailable, match="no thread 'new'"):
            await tk.run(sample_tools.graph, thread_id="new", agent="shop")


async def test_a_question_that_is_not_ours_is_handed_to_the_caller(
    opened: Open,
) -> None:
    builder: StateGraph[Name] = StateGraph(Name)
    builder.add_node("ask", _ask)  # pyright: ignore[reportUnknownMemberType] - its overloads are partial
    builder.set_entry_point("ask")
    async with opened() as tk:
        state = await tk.run(builder, {"name": ""}, thread_id="t1", agent="asker")

    assert [one.value for one in state["__interrupt__"]] == ["your name?"]


async def test_a_synchronous_agent_asks_the_same_gateway(opened: Open) -> None:
    graph = cast("Any", attached(sample_tools.graph(), InMemorySaver()))
    config: Any = {"configurable": {"thread_id": "t1"}}

    async with opened() as tk:
        with tk.connected():
            await asyncio.to_thread(graph.invoke, refund(), config)
        [waiting] = graph.get_state(config).interrupts

    assert waiting.value["type"] == "keyturn.approval"


@pytest.mark.slow
async def test_settings_bring_their_policy_and_their_agents(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(
        "from tests.resume.sample_tools import graph\n", encoding="utf-8"
    )
    (tmp_path / "policy.yml").write_text(POLICY, encoding="utf-8")
    file = tmp_path / "keyturn.yml"
    file.write_text(f"""
agents: {{shop: {{graph: "agent.py:graph"}}}}
redis_url: "{store.conn.url}"
workers: 2
""")
    async with Keyturn(Settings.load(file, {})) as tk:
        await tk.reviews.ask_agent("shop", "t1", CALL, requester=DAN, origin=None)
        await decide(tk, await asked(tk))
        final = await tk.run(sample_tools.graph, thread_id="t1", agent="shop")

    assert final["messages"][-1].text == "refunded 78291 1"
    assert (tmp_path / ".keyturn" / "checkpoints.sqlite").exists()


async def test_without_an_address_the_store_is_in_the_data_folder(
    tmp_path: Path,
) -> None:
    hello = {"messages": [{"role": "user", "content": "hello"}]}
    async with Keyturn(policy=RULES, data_dir=tmp_path) as tk:
        final = await tk.run(sample_tools.graph, hello, thread_id="t1", agent="shop")

    assert final["messages"][-1].text == "You said hello"
    assert (tmp_path / "valkey").is_dir()


async def test_a_keyturn_needs_a_policy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="either settings or a policy"):
        Keyturn()
    with pytest.raises(SettingsError, match="There is no file"):
        Keyturn(policy=tmp_path / "policy.yml")
    with pytest.raises(SettingsError, match="async with"):
        await Keyturn(policy=RULES).run(sample_tools.graph, thread_id="t1")


@pytest.mark.parametrize(
    ("named", "said"),
    [
        *[
            ({"thread_id": thread}, r"names no thread; .*str\(\.\.\.\)")
            for thread in ("", None, 7, UUID(int=7))
        ],
        *[({"agent": agent}, "names no agent") for agent in ("", " ", None)],
    ],
)
async def test_what_names_no_thread_or_agent_is_refused_in_a_sentence(
    opened: Open, named: dict[str, Any], said: str
) -> None:
    graph = sample_tools.graph()
    at: dict[str, Any] = {**PLACE, **named}

    async def streamed(tk: Keyturn) -> list[Any]:
        return [chunk async for chunk in tk.stream(graph, refund(), **at)]

    async with opened() as tk:
        for work in (
            tk.run(graph, refund(), **at),
            streamed(tk),
            tk.wait(graph, **at),
            tk.pending(**at),
            tk.withdraw(**at),
            tk.answers([], **at),
            tk.delete(graph, **at),
        ):
            with pytest.raises(GraphError, match=said):
                await work


async def asked(tk: Keyturn) -> Item:
    """Wait for the one pending item, and until its thread rests."""
    found: list[Item] = []

    async def is_so() -> bool:
        keys = tk.store.keys_of_tenant("default")
        found.clear()
        if await tk.store.conn.command("EXISTS", keys.lease("shop", "t1")):
            return False
        run_ref = RunRef(agent="shop", thread="t1")
        for one in await tk.store.approvals.of_run(keys, run_ref):
            loaded = await tk.reviews.read(one.id)
            assert loaded
            found.extend(item for item in loaded.approval.items if item.is_pending)
        return len(found) == 1

    await eventually(is_so)
    return found[0]


async def decide(tk: Keyturn, item: Item, decision: Any = None) -> object:
    """Decide an item as it was seen."""
    click = Click(
        approval=approval_of(item.id)[0],
        index=item.index,
        version=1,
        action_hash=item.action_hash,
    )
    return await tk.reviews.decide(click, decision or Approve(), ANA)
