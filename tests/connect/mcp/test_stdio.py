"""The command `keyturn mcp`, as a client on stdio starts it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.protocol.records import ItemState
from tests.conftest import eventually
from tests.connect.mcp.conftest import AUTO_AND_HELD, World, until
from tests.connect.mcp.upstream import LOOK, PAY

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
