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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
from aiohttp import web
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from bench import SECRETS, progress
from bench.processes import resident_mb
from bench.stats import Figure, Measured, NotMeasured, plain
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.open_store import open_store
from tests.api.api_stack import ApiStack, serving
from tests.connect.mcp.conftest import AUTO_AND_HELD, http_server, keep_definitions
from tests.connect.mcp.upstream import Script, make_server
from tests.ports import free_port
from tests.service.harness import ServiceHarness

TITLE = "The MCP gate"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work: rounds of auto calls, and calls that wait."""

    rounds: int
    calls: int
    between_legs: int
    held: int


FULL = Plan(rounds=6, calls=50, between_legs=1000, held=201)
QUICK = Plan(rounds=2, calls=5, between_legs=20, held=5)


async def measure(*, is_quick: bool = False) -> Figure:
    """Measure all parts."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Measure all parts according to the plan."""
    async with _World.made() as world:
        progress("auto calls, in turns")
        direct, gated = await world.auto_calls(plan)
        progress(f"{plan.held} held calls of one key")
        refused = await world.held(plan.held)
        progress(f"{plan.between_legs} calls between their legs")
        connections, waits, memory = await world.between_legs(plan.between_legs)
    medians = zip(gated.by_round(0.5), direct.by_round(0.5), strict=True)
    added = Measured("added", "ms", tuple((one - other,) for one, other in medians))
    return Figure(
        TITLE,
        f"{plan.rounds} rounds of {plan.calls} auto calls each way; "
        f"{plan.between_legs} calls between legs; {plan.held} held calls of one key.",
        (direct, gated),
        (
            plain("auto call: added by the gate, p50", added, at_most=10),
            plain("calls between legs: client connections", connections, at_most=0),
            plain("calls between legs: waits at the gateway", waits, at_most=2),
            plain("calls between legs: memory of each", memory, at_most=30),
            plain("held calls: refused by the gateway", refused, at_most=0),
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

        with TemporaryDirectory(prefix="tk-bench-mcp-") as named:
            folder = Path(named)
            script = Script(folder / "billing")
            app = make_server(script.folder).streamable_http_app()
            async with open_store(None, folder, secrets=SECRETS) as store:
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

    async def auto_calls(self, plan: Plan) -> tuple[Measured, Measured]:
        """Make auto calls directly and through the gate, in turns; in ms."""
        async with (
            self.gate("45s") as (url, _),
            _client(self.upstream) as there,
            _client(url) as through,
        ):
            await asyncio.gather(*(_timed(one) for one in (there, through)))
            rows = [
                [
                    (await _timed(there), await _timed(through))
                    for _ in range(plan.calls)
                ]
                for _ in range(plan.rounds)
            ]
        direct, gated = (
            tuple(tuple(pair[place] for pair in row) for row in rows)
            for place in (0, 1)
        )
        return Measured("direct", "ms", direct), Measured("gated", "ms", gated)

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
        ran = sum(call["args"]["to"].startswith("held") for call in self.paid())
        if any(one.is_error for one in results) or ran != number:
            raise NotMeasured(f"{ran} of {number} held calls ran.")
        return Measured("refused", "", ((float(self.answers[429]),),))

    def paid(self) -> list[dict[str, Any]]:
        """Return the effects of the held tool."""
        return [call for call in self.script.calls() if call["name"] == "pay"]

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


async def _timed(client: Client) -> float:
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
