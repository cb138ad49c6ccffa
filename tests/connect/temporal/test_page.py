"""The programs of docs/temporal.md work unchanged, except for the server's address."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
from temporalio.worker import Worker

from keyturn.connect.temporal.plugin import KeyturnPlugin
from keyturn.gateway.approvals.decisions import Approve
from tests.connect.temporal.conftest import World
from tests.docs.reviewing import run
from tests.docs.test_readme import ROOT, blocks

PAGE = (ROOT / "docs" / "temporal.md").read_text(encoding="utf-8")
WORKFLOW, WORKER, WATCH, REQUESTER = blocks("python", PAGE)

pytestmark = pytest.mark.usefixtures("only_dev")


@pytest.fixture
def pages(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, ModuleType]:
    """Import the page's files, in a process with a gateway's URL and key."""
    world.queue = "refunds"
    monkeypatch.setenv("KEYTURN_GATEWAY", world.stack.url)
    monkeypatch.setenv("KEYTURN_API_KEY", world.stack.key(agents=["billing"]))
    monkeypatch.syspath_prepend(str(tmp_path))  # pyright: ignore[reportUnknownMemberType] - as pytest types it
    target = world.client.service_client.config.target_host
    files = {"refunds": WORKFLOW, "worker": WORKER, "watch": WATCH}
    for name, code in files.items():
        text = code.replace("localhost:7233", target)
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    return {name: importlib.import_module(name) for name in files}


async def test_the_pages_worker_runs_the_pages_workflow(
    world: World, pages: dict[str, ModuleType]
) -> None:
    working = asyncio.create_task(pages["worker"].main())
    handle = await world.start(pages["refunds"].Refund.run, "o7")
    await world.decide(handle, Approve())
    text = await handle.result()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)

    assert text == "paid 40 for o7"


def test_a_users_own_lines_are_few() -> None:
    ours = [
        line
        for line in (WORKFLOW + WORKER).splitlines()
        if any(word in line for word in ("keyturn", "Keyturn", "Gated", "gated"))
    ]

    assert len(ours) <= 10


async def test_the_pages_watch_runs(world: World, pages: dict[str, ModuleType]) -> None:
    watch = pages["watch"].Watch
    plugin = KeyturnPlugin(pages["worker"].refund)
    async with Worker(
        world.client, task_queue="refunds", workflows=[watch], plugins=[plugin]
    ):
        handle = await world.start(watch.run)
        await world.decide(handle, Approve())
        await handle.result()


async def test_the_pages_requester_is_a_function_of_the_workflow(world: World) -> None:
    async def slack_user_of(workflow_id: str) -> str:
        return f"U0{workflow_id}"

    names = run(
        REQUESTER.replace("KeyturnPlugin(refund,", "KeyturnPlugin(gateway=gate,"),
        slack_user_of=slack_user_of,
        gate=world.gate,
    )
    call = names["Call"]("billing", "DAN/run", "#1", "refund", {})

    assert (await names["requester"](call)).user == "U0DAN"
