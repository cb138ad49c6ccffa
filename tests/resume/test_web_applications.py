"""A program shows a run, gives out its id, and comes back: stream, wait, withdraw."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.http_api import PendingCall
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.programs import AT, Open, asked, begin, decide, refund, saying, words
from tests.resume.resume_stack import POLICY

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
