"""The command `keyturn mcp`, as a client on stdio starts it."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shlex
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from keyturn.gateway.approvals.decisions import Approve, Edit, Reject
from keyturn.gateway.protocol.records import ItemState
from tests.conftest import eventually
from tests.connect.mcp.conftest import AUTO_AND_HELD, World, until
from tests.connect.mcp.test_http import served
from tests.connect.mcp.test_waiting import ticket_in
from tests.connect.mcp.upstream import LOOK, NOTE, PAY

ARGS = {"to": "ada", "amount": 5}
NEW = {**LOOK, "name": "new"}
pytestmark = pytest.mark.slow


def command(world: World, *words: str) -> list[str]:
    """Return the command line of a gate before the scripted server."""
    upstream = f"billing={shlex.join(world.script.command)}"
    start = [sys.executable, "-m", "keyturn", "mcp", "--upstream", upstream]
    return [*start, "--agent", "coder", *words]


def environment(world: World) -> dict[str, str]:
    """Return the environment that a client's settings give to the gate."""
    gateway = {"KEYTURN_GATEWAY": world.stack.url, "KEYTURN_API_KEY": world.key}
    return {**os.environ, **gateway, "BILLING_TOKEN": "b1"}


@asynccontextmanager
async def connected(world: World, *words: str) -> AsyncGenerator[Client]:
    """Start a gate and connect a client to it."""
    program, *args = command(world, *words)
    server = StdioServerParameters(command=program, args=args, env=environment(world))
    async with Client(server, cache=None) as client:
        yield client


class Raw:
    """A client that writes lines, and keeps every line that the gate prints."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines = list[dict[str, Any]]()

    async def send(self, **message: Any) -> None:
        assert self.process.stdin
        text = json.dumps({"jsonrpc": "2.0", **message})
        self.process.stdin.write(f"{text}\n".encode())
        await self.process.stdin.drain()

    async def answer(self, number: int) -> dict[str, Any]:
        """Return the answer to a request; each line before it has to be a message."""
        assert self.process.stdout
        while True:
            line = await asyncio.wait_for(self.process.stdout.readline(), 30)
            self.lines.append(json.loads(line))
            assert self.lines[-1]["jsonrpc"] == "2.0"
            if self.lines[-1].get("id") == number:
                result: dict[str, Any] = self.lines[-1]["result"]
                return result

    async def start(self) -> None:
        """Shake hands as a client of the year before does."""
        about = {"name": "raw", "version": "1"}
        version: Any = {"protocolVersion": "2025-06-18", "capabilities": {}}
        await self.send(
            id=1, method="initialize", params={**version, "clientInfo": about}
        )
        await self.answer(1)
        await self.send(method="notifications/initialized")


@asynccontextmanager
async def started(world: World, *words: str) -> AsyncGenerator[Raw]:
    """Start a gate, and talk to it line by line."""
    process = await asyncio.create_subprocess_exec(
        *command(world, *words), stdin=PIPE, stdout=PIPE, env=environment(world)
    )
    raw = Raw(process)
    try:
        await raw.start()
        yield raw
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_every_line_on_stdout_is_a_message(world: World) -> None:
    async with started(world) as raw:
        await raw.send(id=2, method="tools/list")
        tools = (await raw.answer(2))["tools"]
        assert [one["name"] for one in tools] == [
            "keyturn_wait",
            "pay",
            "look_up",
            "drop",
        ]
        await raw.send(
            id=3, method="tools/call", params={"name": "pay", "arguments": ARGS}
        )
        await world.decide(Approve())
        assert (await raw.answer(3))["structuredContent"] == {"paid": 5, "to": "ada"}
        assert raw.process.stdin
        assert raw.process.stdout
        raw.process.stdin.close()
        assert await asyncio.wait_for(raw.process.stdout.read(), 30) == b""
        assert await asyncio.wait_for(raw.process.wait(), 30) == 0
    [call] = world.script.calls()
    assert "BILLING_TOKEN" in call["env"]
    assert not [name for name in call["env"] if name.startswith("KEYTURN_")]


async def test_a_call_under_way_is_recorded_when_the_client_ends(world: World) -> None:
    world.script.put(hangs=True)
    async with started(world) as raw:
        await raw.send(
            id=3, method="tools/call", params={"name": "pay", "arguments": ARGS}
        )
        item_id = await world.decide(Approve())
        await until(world.script.calls)
        assert raw.process.stdin
        raw.process.stdin.close()
        # Clients wait two seconds for the end, and then send this.
        raw.process.terminate()
        world.script.put()
        assert await asyncio.wait_for(raw.process.wait(), 30) == 0
    assert (await world.people.item(item_id)).state is ItemState.EXECUTED
    assert len(world.script.calls()) == 1


@pytest.mark.parametrize(
    "upstream", ["no-such-program", "false", "http://127.0.0.1:9/mcp"]
)
async def test_check_names_a_server_that_fails(world: World, upstream: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "keyturn", "mcp", "check", "--agent", "coder"),
        *("--upstream", f"billing={upstream}"),
        stdout=PIPE, stderr=PIPE, env=environment(world),
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 60)

    assert (process.returncode, out) == (2, b"")
    [line] = err.decode().splitlines()
    assert line.startswith("Error: ")
    assert "billing" in line


async def test_check_and_trust_tell_what_is_approved(world: World) -> None:
    async def run(*words: str) -> tuple[int, str]:
        start = [sys.executable, "-m", "keyturn", "mcp", words[0]]
        upstream = f"billing={shlex.join(world.script.command)}"
        process = await asyncio.create_subprocess_exec(
            *start, "--upstream", upstream, "--agent", "coder", *words[1:],
            stdout=PIPE, stderr=PIPE, env=environment(world),
        )  # fmt: skip
        said = b"".join(await asyncio.wait_for(process.communicate(), 60)).decode()
        assert process.returncode is not None
        return process.returncode, said

    raised = "approve, raise: [{to: escalate, when: 'true', because: it is much}]}"
    world.people.put_policy(
        ("billing__pay: {tier: approve}", f"billing__pay: {{tier: {raised}"),
        of=AUTO_AND_HELD,
    )
    world.script.put(tools=[{**PAY, "description": "Pay more."}, LOOK, NEW])
    code, said = await run("check")
    assert code == 1
    assert "billing__pay: tier depends on the arguments, definition changed" in said
    assert "billing__look_up: tier auto, definition approved" in said
    assert "billing__new: tier approve, definition new" in said
    assert "Ask people to approve definitions: keyturn mcp trust SERVER" in said
    assert await world.cards() == 0

    async def is_asked() -> bool:
        return bool(await world.pending())

    asking = asyncio.create_task(run("trust", "billing"))
    await eventually(is_asked, within_s=60)  # two processes start
    await world.decide(Reject(reason="no"))
    code, said = await asking
    assert code == 2
    assert "did not approve the definition of this tool: no" in said

    # They are asked again, and about one tool only.
    asking = asyncio.create_task(run("trust", "billing", "pay"))
    await eventually(is_asked, within_s=60)
    await world.decide(Approve())
    assert (await asking)[0] == 0
    people = world.people
    kept = await people.store.definitions.read(people.keys, "coder", "billing")
    assert kept.tools["pay"]["description"] == "Pay more."
    assert "new" not in kept.tools


# Clients of the SDK's first line (mcp 1.30), over stdio and HTTP.


ROOT = Path(__file__).parents[3]
LOCK = ROOT / "requirements/mcp1.txt"
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
async def started_client(
    world: World, python: Path, where: str
) -> AsyncGenerator[OldClient]:
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
        client = await stack.enter_async_context(
            started_client(world, old_python, where)
        )
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
    async with started_client(world, old_python, where) as client:
        [note] = (await client.call("resources/list"))["resources"]
        assert note["uri"] == NOTE
        [prompt] = (await client.call("prompts/list"))["prompts"]
        assert prompt["name"] == "greet"


async def test_an_old_client_gets_a_late_result(world: World, old_python: Path) -> None:
    """It sends no cancellation, so only the hold ends its wait."""
    async with (
        served(world, 1.0) as (url, gate),
        started_client(world, old_python, url) as client,
    ):
        assert "raised" in await client.call("pay", ARGS, timeout=0.3)
        await until(lambda: not any(call.waiting for call in gate.calls.all()))
        item_id = await world.decide(Approve())
        assert (await world.people.item(item_id)).state is ItemState.AUTHORIZED
        result = await client.call("pay", ARGS)
        assert result["structuredContent"] == {"paid": 5, "to": "ada"}
    assert await world.cards() == 1
    assert len(world.script.calls()) == 1
