"""The examples of docs/embedding.md work unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from examples import aiohttp_app
from keyturn.agent.scripted_model import calling
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.store import Store
from tests.agent.agent_runner import build
from tests.conftest import eventually
from tests.docs.reviewing import HEAD, approve_all, approved_run, embedded, run
from tests.docs.test_readme import ROOT, blocks

SAY = {"messages": [("user", "cancel order 78291")]}
PAGE = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
CODE = blocks("python", PAGE)
PROGRAM, OWN, NODE, STATE = CODE


def test_the_program_runs_an_agent_to_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yml").write_text(blocks("yaml", PAGE)[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()

    with contextlib.redirect_stdout(said):
        run(PROGRAM)

    assert "Order 78377 is a desk chair for 312.50." in said.getvalue()


@pytest.mark.parametrize("version", [3, 4])
async def test_the_order_is_cancelled_in_the_state_that_people_approved(
    store: Store, tmp_path: Path, version: int
) -> None:
    names = run(STATE)
    order = names["ORDERS"]["78291"]
    call = calling(("cancel_order", {"order": "78291"}, "c1"))
    graph = build(None, names["tools"], call)
    run_ref = RunRef(agent="support", thread="t")
    async with embedded(store, tmp_path) as tk:
        running = asyncio.create_task(
            tk.run(graph, SAY, thread_id="t", agent="support")
        )
        await eventually(lambda: _waits(tk, run_ref, version=1))
        order["version"] = version
        await approve_all(tk, run_ref)
        if version != 3:
            await eventually(lambda: _waits(tk, run_ref, version=2))
            assert order["status"] == "open"
            await approve_all(tk, run_ref)
        await running

    assert order["status"] == "cancelled"


async def _waits(tk: Keyturn, run_ref: RunRef, *, version: int) -> bool:
    keys = tk.store.keys_of_tenant("default")
    listed = await tk.store.approvals.of_run(keys, run_ref)
    found = await tk.store.approvals.load_each(one.id for one in listed)
    return [
        one.approval.version for one in found if one.approval.items[0].is_pending
    ] == [version]


@pytest.mark.parametrize("is_asked", [True, False])
async def test_the_plain_node_wires_the_money_once_it_may(
    store: Store, tmp_path: Path, *, is_asked: bool
) -> None:
    graph, ask = run(NODE)["graph"], {"to": "ada", "amount": 90.0}
    listed = "tools: {}" if is_asked else "tools: {wire_money: {tier: auto}}"

    async with embedded(store, tmp_path, HEAD + listed) as tk:
        if is_asked:
            final = await approved_run(tk, graph, ask, agent="billing")
        else:
            final = await tk.run(graph, ask, thread_id="t", agent="billing")

    assert final["said"] == "sent 90.0 to ada"


async def test_a_web_application_comes_back(store: Store, tmp_path: Path) -> None:
    async with embedded(store, tmp_path) as tk:
        server = TestServer(aiohttp_app.make_app(tk))
        async with TestClient(server) as client:

            async def shown() -> dict[str, Any]:
                reply = await client.get("/orders/7")
                found: dict[str, Any] = await reply.json()
                return found

            words = {"text": "look up order 78377"}
            first = await (await client.post("/orders/7", json=words)).json()
            await eventually(lambda: _says_tools(shown, ["look_up_order"]))
            await approve_all(tk, RunRef(agent="support", thread="7"))
            await eventually(lambda: _has_ended(shown))
            last = await shown()

    assert first["said"] is None
    assert last["waiting"] == []
    assert "desk chair" in last["said"]


async def _says_tools(
    shown: Callable[[], Awaitable[dict[str, Any]]], tools: list[str]
) -> bool:
    return [call["tool"] for call in (await shown())["waiting"]] == tools


async def _has_ended(shown: Callable[[], Awaitable[dict[str, Any]]]) -> bool:
    return (await shown())["said"] is not None


async def test_a_program_resumes_its_graph(store: Store, tmp_path: Path) -> None:
    names = run(OWN)

    async with embedded(store, tmp_path) as tk:
        said = asyncio.create_task(names["ask_on_my_own"](tk, "look up order 78377"))
        await approve_all(tk, RunRef(agent="support", thread="order-1"))

        assert "desk chair" in await said
