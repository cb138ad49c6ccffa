"""Run an agent inside any program, and wait durably."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import Command, interrupt

from keyturn.gateway.approvals.decisions import Decided, Edit, Forbidden
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.config import Settings
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError, SettingsError, ThreadUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.http_api import PendingCall
from keyturn.gateway.protocol.records import Person, RunRef
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.service.report.audit_reading import verify_log_of
from keyturn.gateway.store.audit.files import TreeFiles
from keyturn.gateway.store.runs.jobs import RunState, StalledRun
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.programs import (
    AT,
    Open,
    asked,
    begin,
    calling_tools,
    decide,
    in_process,
    recovered_elsewhere,
    refund,
    saying,
    words,
)
from tests.resume.resume_stack import ANA, DAN, POLICY, RULES
from tests.resume.test_run_outages import Provider
from tests.store_secrets import SECRETS

CALL = json.dumps([("refund", {"order": "78291", "amount": 1})])


async def test_a_run_waits_and_returns_the_final_state(opened: Open) -> None:
    async with opened() as tk:
        run = begin(tk, sample_tools.graph, refund())
        item = await asked(tk)
        assert not run.done()

        edit = Edit(args={"order": "78291", "amount": 449.5}, reason="half")
        assert isinstance(await decide(tk, item, edit), Decided)

        final = await run
        assert "refunded 78291 449.5" in words(final)
        assert len(sample_tools.ledger()) == 1


@pytest.mark.slow
async def test_a_restarted_program_waits_for_the_same_call(opened: Open) -> None:
    async with opened() as tk:
        run = begin(tk, sample_tools.graph, refund())
        item = await asked(tk)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await decide(tk, item)

    async with opened() as tk:
        final = await tk.run(sample_tools.graph, refund(), **AT, timeout_s=60)
        assert words(final) == "refunded 78291 899"
        same = await tk.run(sample_tools.graph, **AT)

    assert same["messages"] == final["messages"]
    assert len(sample_tools.ledger()) == 1


async def test_another_input_supersedes_what_waits(opened: Open) -> None:
    async with opened() as tk:
        first = begin(tk, sample_tools.graph, refund())
        await asked(tk)

        final = await tk.run(sample_tools.graph, saying("hello"), **AT)

        assert words(final) == words(await first) == "You said hello"
        assert sample_tools.ledger() == []


async def test_the_same_input_is_one_turn(opened: Open) -> None:
    def hello(**more: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": "hello", **more}]}

    async with opened() as tk:
        for given in (hello(), hello()):
            final = await tk.run(sample_tools.graph, given, **AT)
            assert len(final["messages"]) == 2
        final = await tk.run(sample_tools.graph, hello(id="2"), **AT)

    assert [one.text for one in final["messages"]] == ["hello", "You said hello"] * 2


async def test_who_asked_has_to_be_a_person(opened: Open) -> None:
    who: Any = "U0ANA"
    async with opened() as tk:
        with pytest.raises(SettingsError, match="requester='U0ANA' cannot be used"):
            await tk.run(sample_tools.graph, refund(), thread_id="t1", requester=who)


@pytest.mark.parametrize("user", ["", "ana@example.com", "@ana", "Ana", "S0ANA"])
async def test_who_asked_has_to_have_an_id_of_slack(opened: Open, user: str) -> None:
    """Another name would allow the requester to approve."""
    who = Person(team="T0", user=user)
    async with opened() as tk:
        with pytest.raises(ValueError, match="not an id of a Slack user"):
            await tk.run(sample_tools.graph, refund(), **AT, requester=who, timeout_s=5)


@pytest.mark.parametrize("team", ["T0", "", "E0ORGANIZATION"])
async def test_who_asked_cannot_approve(opened: Open, team: str) -> None:
    """A program's workspace is ignored: bots identify people by their own."""
    async with opened() as tk:
        run = asyncio.create_task(
            tk.run(
                sample_tools.graph,
                refund(),
                **AT,
                requester=ANA.person.with_(team=team),
            )
        )
        outcome = await decide(tk, await asked(tk))
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    assert isinstance(outcome, Forbidden)


async def test_an_agent_that_calls_itself_otherwise_is_named(opened: Open) -> None:
    async with opened() as tk:
        with pytest.raises(GraphError, match=r"ApprovalMiddleware\('store'\)"):
            await tk.run(sample_tools.graph, refund(), thread_id="t1", agent="store")
        for name in ("store", "shop"):
            assert await tk.pending(thread_id="t1", agent=name) == ()


async def test_a_run_needs_a_thread_or_an_input(opened: Open) -> None:
    async with opened() as tk:
        with pytest.raises(ThreadUnavailable, match="no thread 'new'"):
            await tk.run(sample_tools.graph, thread_id="new", agent="shop")


def ask(_: MessagesState) -> dict[str, Any]:
    return {"messages": [("user", interrupt("your name?"))]}


async def test_a_foreign_question_goes_to_the_caller(opened: Open) -> None:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.set_entry_point("ask")
    async with opened() as tk:
        state = await tk.run(builder, saying("hello"), thread_id="t1", agent="asker")

    assert [one.value for one in state["__interrupt__"]] == ["your name?"]


@pytest.mark.slow
async def test_settings_have_policy_and_agents(store: Store, tmp_path: Path) -> None:
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
        final = await tk.run(sample_tools.graph, **AT)

    assert words(final) == "refunded 78291 1"
    assert (tmp_path / ".keyturn" / "checkpoints.sqlite").exists()


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
        ({"thread_id": ""}, r"names no thread; .*str\(\.\.\.\)"),
        ({"thread_id": UUID(int=7)}, r"names no thread; .*str\(\.\.\.\)"),
        ({"agent": " "}, "names no agent"),
        ({"agent": None}, "names no agent"),
    ],
)
async def test_what_names_no_thread_or_agent_is_refused_in_a_sentence(
    opened: Open, named: dict[str, Any], said: str
) -> None:
    graph = sample_tools.graph()
    at: dict[str, Any] = {**AT, **named}

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


ASKING = sample_tools.graph


async def _run(tk: Keyturn) -> object:
    return await tk.run(ASKING, refund(), **AT)


async def _stream(tk: Keyturn) -> object:
    return [one async for one in tk.stream(ASKING, refund(), **AT)]


async def _wait(tk: Keyturn) -> object:
    with suppress(TimeoutError):
        await tk.run(ASKING, refund(), timeout_s=0.1, **AT)
    return await tk.wait(ASKING, **AT)


@pytest.mark.parametrize("ask", [_run, _stream, _wait])
async def test_a_wait_ends_when_the_program_closes(
    store: Store, tmp_path: Path, ask: Callable[[Keyturn], Awaitable[object]]
) -> None:
    async with in_process(store, tmp_path) as tk:
        waiting = asyncio.ensure_future(ask(tk))

        await asked(tk)
        assert not waiting.done()

    async with asyncio.timeout(5):
        with pytest.raises(ThreadUnavailable, match="run it again to go on"):
            await waiting


@pytest.mark.parametrize("ask", [_run, _stream, _wait])
async def test_a_run_that_begins_while_the_program_closes_is_told_so(
    store: Store, tmp_path: Path, ask: Callable[[Keyturn], Awaitable[object]]
) -> None:
    async with in_process(store, tmp_path) as tk:
        waiting = asyncio.ensure_future(ask(tk))

    with pytest.raises(ThreadUnavailable, match="run it again to go on"):
        await waiting


LOOK_UP = calling_tools(("look_up", {"order": "1"}))


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    """Give the shop's model a provider that can fail."""
    found = Provider()
    monkeypatch.setattr(sample_tools, "after_tools", found.answer)
    return found


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyturn.gateway.resume.transient_retry.FIRST_PAUSE_S", 0.01)


async def kept(tk: Keyturn) -> StalledRun | None:
    """Return the stored fields of the run."""
    keys = tk.store.keys_of_tenant("default")
    run = keys.stalled_run("shop", "t1")
    return await tk.store.stalled.find(keys, run)


@pytest.mark.usefixtures("short_pauses")
async def test_a_run_waits_until_its_checkpoints_are_there(tk: Keyturn) -> None:
    saver: Any = InMemorySaver()
    tries: list[int] = []
    put = saver.aput

    async def away(*args: Any, **options: Any) -> Any:
        tries.append(1)
        if len(tries) < 5:
            raise ConnectionError("the database is away")
        return await put(*args, **options)

    saver.aput = away
    graph: Any = sample_tools.graph()
    graph.checkpointer = saver

    assert words(await tk.run(graph, LOOK_UP, **AT)) == "found 1"
    assert sample_tools.ledger() == ["look_up 1"]


async def test_a_parked_run_needs_no_input(tk: Keyturn, provider: Provider) -> None:
    provider.error = KeyError("a bug")
    with pytest.raises(KeyError):
        await tk.run(sample_tools.graph, LOOK_UP, **AT)
    parked = await kept(tk)
    await recovered_elsewhere(tk, sample_tools.graph)

    assert parked
    assert parked.state is RunState.PARKED
    assert provider.calls == 1
    with pytest.raises(GraphError, match=r"given up: .*KeyError"):
        await tk.wait(sample_tools.graph, **AT)

    provider.error = None
    assert words(await tk.run(sample_tools.graph, **AT)) == "found 1"

    async def is_gone() -> bool:
        return await kept(tk) is None

    await eventually(is_gone)


async def test_a_stopped_gateway_has_signed(store: Store, tmp_path: Path) -> None:
    keys = store.keys_of_tenant("default")
    event = Event(name=EventName.RUN_STARTED, tenant="default", agent="a", thread="t")

    for _ in range(2):
        async with Keyturn(
            policy=RULES,
            url=store.conn.url,
            secrets=SECRETS,
            data_dir=tmp_path,
            insecure_dev=True,
        ) as keyturn:
            await keyturn.store.outbox(keys, reader="r").put(event)
            store.keyring = keyturn.store.keyring

    store.tree_folder = tmp_path / "audit"
    found = await verify_log_of(store, "default")
    files = TreeFiles(tmp_path / "audit", keys.tenant)
    assert (found.problems, found.unsigned) == ([], 0)
    assert found.entries == files.size >= 3
    names = [event.name async for event in store.audit(keys).entries()]
    # The signing keys are logged once, and again only if they change.
    assert names.count(EventName.KEYS_CHANGED) == 1
    assert len(files.notes()) >= 2
    # If there are segments, the folder has the actor and the reason.
    assert files.folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in files.folder.iterdir())


IN_PROCESS = pytest.mark.parametrize("opened", ["in process"], indirect=True)
"""What is about the events of the store, which a remote program does not read."""


async def test_a_stream_goes_on_and_ends_with_its_thread(opened: Open) -> None:
    async with opened() as tk:
        seen: list[Any] = []

        async def show() -> None:
            chunks = tk.stream(sample_tools.graph, refund(), **AT)
            seen.extend([chunk async for chunk in chunks])

        page = asyncio.create_task(show())
        await decide(tk, await asked(tk))
        await page
        final = await tk.wait(sample_tools.graph, **AT)

    steps = [name for chunk in seen for name in chunk]
    assert steps.count("__interrupt__") == 1
    assert steps.index("__interrupt__") < steps.index("tools")
    said = [chunk["model"]["messages"][0].text for chunk in seen if "model" in chunk]
    assert said[-1] == words(final)


@pytest.mark.slow
async def test_who_leaves_a_stream_leaves_the_run_alone(opened: Open) -> None:
    async with opened() as tk:
        stream = tk.stream(sample_tools.graph, refund(), **AT)
        await anext(stream)
        await stream.aclose()
        await decide(tk, await asked(tk))
        final = await tk.wait(sample_tools.graph, **AT)

    assert words(final) == "refunded 78291 899"


async def test_a_failing_graphs_stream_raises_its_error(opened: Open) -> None:
    broken: Any = saying("break")
    async with opened() as tk:
        with pytest.raises(RuntimeError, match="the model is down"):
            _ = [chunk async for chunk in tk.stream(sample_tools.graph, broken, **AT)]


@pytest.mark.slow
async def test_a_waiting_call_is_described(store: Store, tmp_path: Path) -> None:
    rules = load_policy(
        POLICY.replace(
            "refund: {tier: approve}",
            "refund: {tier: approve, description: Pay back, redact: [args.order]}",
        ),
        "policy.yml",
    )
    async with Keyturn(policy=rules, url=store.conn.url, data_dir=tmp_path) as tk:
        assert await tk.pending(**AT) == ()
        run = begin(tk, sample_tools.graph, refund())
        item = await asked(tk)
        (call,) = await tk.pending(**AT)
        await decide(tk, item)
        await run
        after = await tk.pending(**AT)

    assert (call.item_id, call.tool, call.agent) == (item.id, "refund", "shop")
    assert call.args["amount"] == 899
    assert "78291" not in str(call)
    assert call.description == "Pay back"
    assert call.expires_at - call.opened_at == timedelta(hours=1)
    assert call.expires_at.tzinfo is not None
    assert after == ()
    assert PendingCall.model_validate_json(call.model_dump_json()) == call


@pytest.mark.slow
async def test_a_withdrawn_call_ends_and_the_agent_is_told(opened: Open) -> None:
    async with opened() as tk:
        run = begin(tk, sample_tools.graph, refund())
        item = await asked(tk)
        ended = await tk.withdraw(**AT, item_ids=["ap_other.0", item.id])
        final = await run
        again = await tk.withdraw(**AT)

    assert ended == (item.id,)
    assert "withdrawn" in words(final)
    assert again == ()
    assert sample_tools.ledger() == []


async def test_a_thread_about_to_be_written_is_waited_for(opened: Open) -> None:
    saver: Any = InMemorySaver()
    put, may_write, is_asked = saver.aput, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **options: Any) -> Any:
        is_asked.set()
        await may_write.wait()
        return await put(*args, **options)

    saver.aput = slow
    graph: Any = sample_tools.graph()
    graph.checkpointer = saver
    async with opened() as tk:
        with pytest.raises(TimeoutError):
            await tk.run(graph, saying("hello"), **AT, timeout_s=0.01)
        await is_asked.wait()

        # A web application that shows the run between its start and its first write.
        with pytest.raises(TimeoutError):
            await tk.wait(graph, **AT, timeout_s=0.01)
        waiting = asyncio.create_task(tk.wait(graph, **AT))
        may_write.set()

        assert (await waiting)["messages"][0].content == "hello"


@pytest.mark.slow
async def test_a_wait_can_be_bounded_and_sees_the_failure_of_a_run_it_did_not_start(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:

    def down(_results: list[str]) -> str:
        raise RuntimeError("the model is down")

    monkeypatch.setattr(sample_tools, "after_tools", down)
    async with opened() as tk:
        with pytest.raises(TimeoutError):
            await tk.run(sample_tools.graph, refund(), **AT, timeout_s=0.01)
        item = await asked(tk)
        with pytest.raises(TimeoutError):
            await tk.wait(sample_tools.graph, **AT, timeout_s=0.01)
        waiting = asyncio.create_task(tk.wait(sample_tools.graph, **AT))
        await decide(tk, item)

        with pytest.raises(GraphError, match="was given up"):
            await waiting


async def test_a_program_with_its_own_graphs_gets_the_answers(opened: Open) -> None:
    graph = cast("Any", attached(sample_tools.graph(), InMemorySaver()))
    config: Any = {"configurable": {"thread_id": "t1"}}

    async with opened() as tk:
        with tk.connected():
            paused = await graph.ainvoke(refund(), config, durability="sync")
        questions = paused["__interrupt__"]
        none_yet = await tk.answers(questions, **AT)
        bounded = await tk.answers(questions, **AT, timeout_s=0.01)
        waiting = asyncio.create_task(tk.answers(questions, **AT, timeout_s=None))
        edit = Edit(args={"order": "78291", "amount": 5}, reason="less")
        await decide(tk, await asked(tk), edit)
        answers = await waiting
        with tk.connected():
            final = await graph.ainvoke(
                Command(resume=answers), config, durability="sync"
            )

        await eventually(lambda: _has_no_job(tk))

    assert (none_yet, bounded) == ({}, {})
    assert list(answers) == [questions[0].id]
    assert words(final).endswith("refunded 78291 5")


async def _has_no_job(tk: Keyturn) -> bool:
    keys = tk.store.keys_of_tenant("default")
    counts = [
        await tk.store.conn.command("XLEN", keys.jobs),
        await tk.store.conn.command("ZCARD", keys.retry),
    ]
    return counts == [0, 0]


def _all_wait(tk: Keyturn, count: int) -> Any:
    async def they_do() -> bool:
        waiting = cast("Any", tk)._runs._waiting
        return len(waiting.get(RunRef(agent="shop", thread="t1"), ())) == count

    return they_do


@IN_PROCESS
@pytest.mark.slow
async def test_another_processs_progress_is_seen(opened: Open) -> None:
    async with opened() as first, opened() as second:
        run = asyncio.create_task(first.run(sample_tools.graph, refund(), **AT))
        item = await asked(first)
        # Only the second one works from now on.
        cast("Any", first)._runners.release("shop", "t1")
        other = asyncio.create_task(second.run(sample_tools.graph, **AT))
        await eventually(_all_wait(second, 1))
        await decide(first, item)

        finals = await asyncio.gather(run, other)

    assert finals[0]["messages"][-1].text == "refunded 78291 899"
    assert len(sample_tools.ledger()) == 1
