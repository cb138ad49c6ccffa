"""Clients of the SDK's first line (mcp 1.30), over stdio and HTTP."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Approve, Edit, Reject
from keyturn.gateway.protocol.records import ItemState
from tests.connect.mcp.conftest import World, until
from tests.connect.mcp.test_http import served
from tests.connect.mcp.test_stdio import command, environment
from tests.connect.mcp.test_waiting import ticket_in
from tests.connect.mcp.upstream import NOTE

ROOT = Path(__file__).parents[3]
LOCK = ROOT / "requirements/mcp1.txt"
ARGS = {"to": "ada", "amount": 5}
_NO_REGISTRY = ("Failed to fetch", "error sending request", "dns error")
CLIENT = """
import asyncio, json, os, sys
from contextlib import asynccontextmanager
from datetime import timedelta

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client


@asynccontextmanager
async def connected():
    if sys.argv[1].startswith("http"):
        async with streamablehttp_client(sys.argv[1]) as (read, write, _):
            yield read, write
        return
    program, *args = json.loads(sys.argv[1])
    server = StdioServerParameters(command=program, args=args, env=dict(os.environ))
    async with stdio_client(server) as streams:
        yield streams


async def answer(session, wanted):
    if wanted["tool"].endswith("/list"):
        return await getattr(session, "list_" + wanted["tool"][:-5])()
    limit = timedelta(seconds=wanted.get("timeout", 60))
    tool, args = wanted["tool"], wanted["args"]
    return await session.call_tool(tool, args, read_timeout_seconds=limit)


async def main():
    async with connected() as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                found = (await answer(session, json.loads(line))).model_dump(
                    by_alias=True, mode="json"
                )
            except Exception as error:
                found = {"raised": str(error)}
            print(json.dumps(found), flush=True)


asyncio.run(main())
"""
"""A program for the old SDK: it makes a call for each line, and prints the result."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def old_python() -> Path:
    """Install the old SDK once for all processes of tests; return its Python."""
    made_of = f"{sys.version}{LOCK.read_text(encoding='utf-8')}"
    name = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    folder = ROOT / ".pytest_cache" / "mcp1" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _install(folder)
            (folder / "ready").touch()
    return folder / "bin" / "python"


def _install(folder: Path) -> None:
    uv = Path(sys.prefix, "bin", "uv")
    target = ("--python", folder / "bin" / "python")
    for words in (
        ("venv", "--quiet", "--clear", "--python", sys.executable, folder),
        ("pip", "install", "--quiet", "--require-hashes", "-r", LOCK, *target),
    ):
        done = subprocess.run([uv, *words], capture_output=True, text=True, check=False)
        if any(one in done.stderr for one in _NO_REGISTRY):
            pytest.skip("no package registry to install mcp 1.x from")
        assert done.returncode == 0, done.stderr


class OldClient:
    """A client in another process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def call(self, tool: str, args: Any = None, **more: Any) -> dict[str, Any]:
        """Make a call, and return its result as JSON."""
        assert self._process.stdin
        assert self._process.stdout
        text = json.dumps({"tool": tool, "args": args or {}, **more})
        self._process.stdin.write(f"{text}\n".encode())
        await self._process.stdin.drain()
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        found: dict[str, Any] = json.loads(line)
        return found


@asynccontextmanager
async def started(world: World, python: Path, where: str) -> AsyncGenerator[OldClient]:
    """Start an old client of the gate at a URL, or of a command line."""
    process = await asyncio.create_subprocess_exec(
        python, "-c", CLIENT, where,
        stdin=PIPE, stdout=PIPE, env=environment(world),
    )  # fmt: skip
    try:
        yield OldClient(process)
        assert process.stdin
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def collected(client: OldClient, found: dict[str, Any]) -> dict[str, Any]:
    """Wait with the ticket in a result, as often as needed."""
    while "Your ticket is" in str(found):
        ticket = ticket_in(str(found))
        found = await client.call("keyturn_wait", {"ticket": ticket})
    return found


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_an_old_client_reads_decisions_edits_and_tickets(
    world: World, old_python: Path, transport: str
) -> None:
    async with AsyncExitStack() as stack:
        where = json.dumps(command(world, "--hold", "1s"))
        if transport == "http":
            where, _ = await stack.enter_async_context(served(world, 1.0))
        client = await stack.enter_async_context(started(world, old_python, where))
        tools = (await client.call("tools/list"))["tools"]
        assert "keyturn_notice" in tools[1]["outputSchema"]["properties"]

        # It validates the edited result against the listed schema.
        calling = asyncio.create_task(client.call("pay", ARGS))
        await world.decide(Edit(args={"to": "ada", "amount": 3}))
        edited = await collected(client, await calling)
        assert edited["structuredContent"]["paid"] == 3
        assert "Executed arguments" in edited["structuredContent"]["keyturn_notice"]

        calling = asyncio.create_task(client.call("pay", ARGS))
        await world.decide(Reject(reason="no"))
        assert "Their reason" in str(await collected(client, await calling))

        first = await client.call("pay", ARGS)
        assert ticket_in(str(first))
        await world.decide(Approve())
        result = await collected(client, first)
        assert result["structuredContent"] == {"paid": 5, "to": "ada"}
    assert [one["args"]["amount"] for one in world.script.calls()] == [3, 5]


async def test_an_old_client_sees_the_tools(world: World, old_python: Path) -> None:
    where = json.dumps(command(world, "--pass", "resources,prompts"))
    async with started(world, old_python, where) as client:
        [note] = (await client.call("resources/list"))["resources"]
        assert note["uri"] == NOTE
        [prompt] = (await client.call("prompts/list"))["prompts"]
        assert prompt["name"] == "greet"


async def test_an_old_client_gets_a_late_result(world: World, old_python: Path) -> None:
    """It sends no cancellation, so only the hold ends its wait."""
    async with (
        served(world, 1.0) as (url, gate),
        started(world, old_python, url) as client,
    ):
        assert "raised" in await client.call("pay", ARGS, timeout=0.3)
        await until(lambda: not any(call.waiting for call in gate.calls.all()))
        item_id = await world.decide(Approve())
        assert (await world.people.item(item_id)).state is ItemState.AUTHORIZED
        result = await client.call("pay", ARGS)
        assert result["structuredContent"] == {"paid": 5, "to": "ada"}
    assert await world.cards() == 1
    assert len(world.script.calls()) == 1
