"""Measure the MCP gate: what it adds to a call, and what a waiting call costs.

The gate is a process of its own (`keyturn mcp --listen`). The gateway, the MCP server
behind the gate and the clients share this process.

- An ``auto`` call through the gate and one directly to the server, in turns. Both are
  over HTTP; the difference of their medians is what the gate adds.
- Many calls of current clients that wait between their legs: open connections of
  clients, requests to the gateway that wait, and memory of the gate.
- More held calls through one API key than it may have waiting requests: refusals
  (429), and effects after the decisions.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from aiohttp import web
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from bench import progress
from bench.processes import resident_mb
from bench.stats import Figure, Measured, NotMeasured, result
from bench.world import durable_store, in_turns
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.policy.load import load_policy
from tests.api.api_stack import ApiStack, serving
from tests.connect.mcp.conftest import AUTO_AND_HELD, http_server, keep_definitions
from tests.connect.mcp.upstream import Script, make_server
from tests.ports import free_port
from tests.service.harness import ServiceHarness

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


async def measure(*, is_quick: bool = False) -> Figure:
    """Measure all parts."""
    rounds, calls, legs, held = (2, 5, 20, 5) if is_quick else (6, 50, 1000, 201)
    async with _World.made() as world:
        progress("auto calls, in turns")
        direct, gated = await world.auto_calls(rounds, calls)
        progress(f"{held} held calls of one key")
        refused = await world.held(held)
        progress(f"{legs} calls between their legs")
        connections, waits, memory = await world.between_legs(legs)
    medians = zip(gated.by_round(0.5), direct.by_round(0.5), strict=True)
    added = Measured("added", "ms", tuple((one - other,) for one, other in medians))
    return Figure(
        "The MCP gate",
        f"{rounds} rounds of {calls} auto calls each way; "
        f"{legs} calls between legs; {held} held calls of one key.",
        (direct, gated),
        (
            result("auto call: added by the gate, p50", added, at_most=10),
            result("calls between legs: client connections", connections, at_most=0),
            result("calls between legs: waits at the gateway", waits, at_most=2),
            result("calls between legs: memory of each", memory, at_most=30),
            result("held calls: refused by the gateway", refused, at_most=0),
        ),
    )


@dataclass
class _World:
    people: ServiceHarness
    stack: ApiStack
    script: Script
    upstream: str
    key: str
    answers: Counter[int]

    @classmethod
    @asynccontextmanager
    async def made(cls) -> AsyncGenerator[_World]:
        """Start the store, the gateway and the server behind the gate."""
        answers = Counter[int]()

        async def count(
            request: web.BaseRequest, handler: Handler
        ) -> web.StreamResponse:
            reply = await handler(request)
            answers[reply.status] += 1
            return reply

        async with durable_store() as (store, folder):
            script = Script(folder / "billing")
            app = make_server(script.folder).streamable_http_app()
            people = ServiceHarness(store, load_policy(AUTO_AND_HELD, "bench.yml"))
            await keep_definitions(people, "coder")
            async with serving(people, [count]) as stack, http_server(app) as url:
                key = stack.key(agents=["coder"])
                yield cls(people, stack, script, f"{url}/mcp", key, answers)

    @asynccontextmanager
    async def gate(self, hold: str) -> AsyncGenerator[tuple[str, int]]:
        """Run the gate; give its URL and its process id."""
        place = f"127.0.0.1:{free_port()}"
        words = ("--upstream", f"billing={self.upstream}", "--agent", "coder")
        env = {**os.environ, "KEYTURN_GATEWAY": self.stack.url}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "keyturn", "mcp", *words),
            *("--listen", place, "--hold", hold),
            env={**env, "KEYTURN_API_KEY": self.key},
        )
        try:
            await _until_open(place, process)
            yield f"http://{place}/mcp", process.pid
        finally:
            process.terminate()
            await process.wait()

    async def auto_calls(self, rounds: int, calls: int) -> list[Measured]:
        """Make auto calls directly and through the gate, in turns; in ms."""
        async with (
            self.gate("45s") as (url, _),
            _client(self.upstream) as there,
            _client(url) as through,
        ):
            ways = {"direct": partial(_timed, there), "gated": partial(_timed, through)}
            return await in_turns(ways, rounds, calls)

    async def between_legs(self, number: int) -> tuple[Measured, Measured, Measured]:
        """Let calls wait between legs; return connections, waits and kB of each."""
        async with self.gate("1s") as (url, pid):
            # The first calls make the pools that later ones share.
            first = min(60, number // 2)
            await _first_legs(url, range(first))
            before = resident_mb(pid)
            await _first_legs(url, range(first, number))
            if len(await self._pending(number)) != number:
                raise NotMeasured("Not every call waits for people.")
            each = (resident_mb(pid) - before) * 1000 / (number - first)
            port = int(url.rpartition(":")[2].partition("/")[0])
            clients = _established(pid, port)
            limits: Any = self.stack.api.limits
            waits = sum(limits._waits.values())  # noqa: SLF001 - its count
        return (
            Measured("client connections", "", ((float(clients),),)),
            Measured("waits", "", ((float(waits),),)),
            Measured("memory", "kB", ((max(each, 0.0),),)),
        )

    async def held(self, number: int) -> Measured:
        """Hold calls at once, decide them; return the refusals of the gateway."""
        self.answers.clear()
        async with self.gate("10m") as (url, _), _client(url, "legacy") as client:
            calling = [
                asyncio.create_task(
                    client.call_tool("pay", {"to": f"held {each}", "amount": 1})
                )
                for each in range(number)
            ]
            for item_id in await self._pending(number):
                await self.people.decide(item_id, Approve())
            results = await asyncio.gather(*calling)
        paid = [call for call in self.script.calls() if call["name"] == "pay"]
        ran = sum(call["args"]["to"].startswith("held") for call in paid)
        if any(one.is_error for one in results) or ran != number:
            raise NotMeasured(f"{ran} of {number} held calls ran.")
        return Measured("refused", "", ((float(self.answers[429]),),))

    async def _pending(self, least: int) -> set[str]:
        """Return the waiting calls, once there are so many."""
        while True:
            found, cursor = set[str](), ""
            async with self.stack.client(self.key) as client:
                while True:
                    query = {"limit": "200", "cursor": cursor}
                    page = (await client.get("/v1/approvals", params=query)).json()
                    found |= {one["calls"][0]["id"] for one in page["approvals"]}
                    cursor = page["next"]
                    if not cursor:
                        break
            if len(found) >= least:
                return found
            await asyncio.sleep(0.5)


@asynccontextmanager
async def _client(url: str, mode: str = "auto") -> AsyncGenerator[Client]:
    async with (
        httpx2.AsyncClient(timeout=900, limits=httpx2.Limits()) as http,
        Client(
            streamable_http_client(url, http_client=http), mode=mode, cache=None
        ) as client,
    ):
        yield client


async def _timed(client: Client, _: str) -> float:
    began = time.perf_counter()
    result = await client.call_tool("look_up", {})
    if result.is_error:
        raise NotMeasured(f"An auto call failed: {result.content}")
    return (time.perf_counter() - began) * 1000


async def _first_legs(url: str, numbers: Sequence[int]) -> None:
    """Send the first leg of calls, a few at a time, and disconnect."""
    async with _client(url) as client:
        for start in range(0, len(numbers), 20):
            few = numbers[start : start + 20]
            await asyncio.gather(*(_first_leg(client, one) for one in few))


async def _first_leg(client: Client, number: int) -> None:
    args = {"to": f"between {number}", "amount": 1}
    await client.session.call_tool("pay", args, allow_input_required=True)


def _established(pid: int, port: int) -> int:
    """Return the connections of clients to a port that a process has open.

    Source: proc(5), ``/proc/[pid]/net/tcp``: local address, state 01.
    """
    rows = Path(f"/proc/{pid}/net/tcp").read_text("ascii").splitlines()[1:]
    fields = (row.split() for row in rows)
    return sum(one[1].endswith(f":{port:04X}") and one[3] == "01" for one in fields)


async def _until_open(place: str, process: asyncio.subprocess.Process) -> None:
    host, _, port = place.partition(":")
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(0.1)
            continue
        writer.close()
        return
    raise NotMeasured("The gate ended before it was ready.")
