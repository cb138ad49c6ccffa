"""Measure the latency from a decision to the tool of a remote agent.

Two ways to the same tool, taken alternately on one durable Valkey and one SQLite
checkpointer, each approval in a separate thread. People decide in this process.

- in process: the worker of this process resumes the agent, see `decision_to_tool`.
- over HTTP: the agent has only the URL of `keyturn gateway`, in a separate process, and
  an API key. Its wait for the answer and its claim are requests.

Decisions are signed and claims have receipts, both ways.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import yaml
from langchain_core.messages import HumanMessage

from bench import SECRETS
from bench.both_agents import both_agents
from bench.decision_to_tool import Keyturn, Subject, compared
from bench.payments_stub import Graph, PaymentsStub, agent, refund_once
from bench.stats import Figure, NotMeasured, result
from bench.world import DAN, RULES, approve, asked_in
from keyturn import Keyturn as Product
from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.gateway.config import Settings
from keyturn.gateway.garbage_collection import spare_what_is_there
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.remote.program import RemoteKeyturn
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import FOLDER, Keyring, Role
from tests.apart.house import new_key
from tests.ports import free_port

AGENT = "elsewhere"
MOST = 2.0

_SETTLED_S = 0.3
"""How long an agent may take from its submission until it waits for the answer."""


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both alternately and compare them."""
    rounds, approvals = (2, 3) if is_quick else (6, 10)
    spare_what_is_there()
    stub = PaymentsStub()
    async with subjects(stub) as found:
        here, there = await compared(found, stub, rounds, approvals)
    return Figure(
        "Decision to tool start over HTTP",
        f"{rounds} rounds of {approvals} approvals each; gateway and "
        "store are separate processes; decision and agent share one.",
        (here, there),
        (result("over HTTP / in process, p50", there, here, at_most=MOST),),
    )


class OverHttp:
    """An agent with an API key, and a gateway in another process."""

    name = "over HTTP"

    def __init__(self, store: Store, program: RemoteKeyturn, graph: Graph) -> None:
        self._store = store
        self._program = program
        self._graph = graph
        self._runs: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def propose(self, order: str) -> None:
        """See `Subject.propose`."""
        self._runs[order] = asyncio.create_task(
            self._program.run(
                self._graph,
                {"messages": [HumanMessage(order)]},
                thread_id=order,
                agent=AGENT,
                requester=DAN,
            )
        )
        run = _run_of(order)
        while not await asked_in(self._store, run):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)
        # The agent then saves its state and waits, which sends no event here.
        await asyncio.sleep(_SETTLED_S)

    async def decide(self, order: str) -> float:
        """See `Subject.decide`."""
        [asked] = await asked_in(self._store, _run_of(order))
        return await approve(self._store, asked)

    async def wait_until_idle(self, order: str) -> None:
        """See `Subject.wait_until_idle`."""
        await self._runs.pop(order)


@asynccontextmanager
async def subjects(stub: PaymentsStub) -> AsyncGenerator[list[Subject]]:
    """Start a worker here, and a gateway with a remote agent."""
    with TemporaryDirectory(prefix="tk-bench-http-") as named:
        folder = Path(named)

        def ours(store: Store) -> Keyturn:
            # The gateway reads the public key of the decisions from this folder.
            store.keyring = Keyring(folder / FOLDER, makes=[Role.BOT, Role.GATEWAY])
            store.keyring.make_missing(datetime.now(UTC))  # noqa: TID251 - a new key
            return Keyturn(store)

        async with (
            both_agents(stub, refund_once, ours) as (here, store, _),
            _gateway(folder, store) as (url, key),
            open_checkpoints(str(folder / "elsewhere.db")) as saver,
            Product.remote(url, api_key=key) as program,
        ):
            gated = agent(stub, ApprovalMiddleware(AGENT), guarded, refund_once)
            here.name = "in process"
            yield [here, OverHttp(store, program, attached(gated, saver))]


@asynccontextmanager
async def _gateway(folder: Path, store: Store) -> AsyncGenerator[tuple[str, str]]:
    """Run `keyturn gateway`; yield its URL and an API key."""
    place = f"127.0.0.1:{free_port()}"
    config, url = folder / "keyturn.yml", f"http://{place}"
    document = {
        "policy": yaml.safe_load(RULES),
        "data_dir": str(folder),
        "api": {"listen": place},
    }
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    env = {
        **{name: one for name, one in os.environ.items() if "KEYTURN" not in name},
        "KEYTURN_REDIS_URL": store.conn.url,
        "KEYTURN_SECRET": SECRETS[0].hex(),
    }
    words = ("-m", "keyturn", "--config", str(config), "gateway")
    with (folder / "gateway.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=env, stdout=log, stderr=log
        )
    try:
        await _until_ready(url, process)
        yield url, await new_key(store, Settings.load(config, env), AGENT)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _until_ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        is_ready = False
        while not is_ready and process.returncode is None:
            await asyncio.sleep(0.1)
            with suppress(httpx.TransportError):
                is_ready = (await client.get("/readyz")).is_success
    if not is_ready:
        raise NotMeasured("The gateway ended before it was ready.")


def _run_of(order: str) -> RunRef:
    return RunRef(agent=AGENT, thread=order)
