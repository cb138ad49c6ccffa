"""Measure the latency from a decision to the tool of an agent that is elsewhere.

Two ways to the same tool, taken in turns on one durable Valkey and one SQLite
checkpointer, each approval in a thread of its own. People decide in this process.

- in process: the worker of this process resumes the agent, see `decision_to_tool`.
- over HTTP: the agent has nothing but the URL of `twokey gateway`, a process of its
  own, and an API key. Its wait for the answer and its claim are requests.

Decisions are signed and claims have receipts, on both ways.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from langchain_core.messages import HumanMessage

from bench.both_agents import ANA, DAN, POLICY, RULES, both_agents
from bench.decision_to_tool import Plan, Subject, Twokey, one_approval
from bench.payments_stub import Graph, PaymentsStub, agent, refund_once
from bench.stats import Figure, Measured, NotMeasured, ratio
from bench.store_secrets import SECRETS
from tests.approvals.builders import click_on
from twokey import Twokey as Product
from twokey.agent import ApprovalMiddleware, guarded
from twokey.gateway.approvals.decisions import Approve, Decided
from twokey.gateway.garbage_collection import spare_what_is_there
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.remote.program import RemoteTwokey
from twokey.gateway.resume.checkpoints import open_checkpoints
from twokey.gateway.resume.graphs import attached
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.store import Store
from twokey.gateway.trust.key_folder import Role
from twokey.gateway.trust.keyring import FOLDER, Keyring

TITLE = "Decision to tool start over HTTP"
AGENT = "elsewhere"
MOST = 2.0

_READY_S = 60.0
_SETTLED_S = 0.3
"""How long an agent may take from its submission until it waits for the answer."""

FULL = Plan(rounds=6, approvals=10)
QUICK = Plan(rounds=2, approvals=3)


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both in turns and compare them."""
    spare_what_is_there()
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Run both as often as the plan says."""
    stub = PaymentsStub()
    async with subjects(stub) as found:
        for subject in found:
            await one_approval(subject, stub, f"{subject.name} warms up")
        rounds: list[list[list[float]]] = []
        for turn in range(plan.rounds):
            taken: list[list[float]] = [[] for _ in found]
            for number in range(plan.approvals):
                for row, subject in zip(taken, found, strict=True):
                    order = f"{subject.name} {turn}.{number}"
                    row.append(await one_approval(subject, stub, order))
            rounds.append(taken)
    here, there = (
        Measured(one.name, "ms", tuple(tuple(row[place]) for row in rounds))
        for place, one in enumerate(found)
    )
    return Figure(
        TITLE,
        f"{plan.rounds} rounds of {plan.approvals} approvals each; the gateway is a "
        "process of its own, the store another one; decision and agent share one.",
        (here, there),
        (ratio("over HTTP / in process, p50", there, here, at_most=MOST),),
    )


class OverHttp:
    """An agent beside a gateway in another process, with an API key."""

    name = "over HTTP"

    def __init__(self, store: Store, program: RemoteTwokey, graph: Graph) -> None:
        self._store = store
        self._program = program
        self._graph = graph
        self._reviews = ReviewService(store, lambda: POLICY)
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
        while not await self._asked(order):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
        # Then it says where it rests and waits, of which nothing here tells.
        await asyncio.sleep(_SETTLED_S)

    async def decide(self, order: str) -> float:
        """See `Subject.decide`."""
        [found] = await self._asked(order)
        loaded = await self._reviews.read_as_of_now(found)
        assert loaded is not None, found
        click = click_on(loaded.approval)
        began = time.perf_counter()
        outcome = await self._reviews.decide(click, Approve(), ANA)
        assert isinstance(outcome, Decided), outcome
        return began

    async def wait_until_idle(self, order: str) -> None:
        """See `Subject.wait_until_idle`."""
        await self._runs.pop(order)

    async def _asked(self, order: str) -> list[str]:
        keys = self._store.keys_of_tenant("default")
        run = RunRef(agent=AGENT, thread=order)
        listed = await self._store.approvals.of_run(keys, "default", run)
        return [one.id for one in listed]


@asynccontextmanager
async def subjects(stub: PaymentsStub) -> AsyncGenerator[list[Subject]]:
    """Start a worker here, and a gateway elsewhere with an agent beside it."""
    with TemporaryDirectory(prefix="tk-bench-http-") as named:
        folder = Path(named)

        def ours(store: Store) -> Twokey:
            # The gateway reads the public key of what decides here in this folder.
            store.keyring = Keyring(folder / FOLDER, makes=[Role.BOT, Role.GATEWAY])
            store.keyring.make_missing(datetime.now(UTC))  # noqa: TID251 - a new key
            return Twokey(store)

        async with (
            both_agents(stub, refund_once, ours) as (here, store, _),
            _gateway(folder, store.conn.url) as (url, key),
            open_checkpoints(str(folder / "elsewhere.db")) as saver,
            Product.remote(url, api_key=key) as program,
        ):
            gated = agent(stub, ApprovalMiddleware(AGENT), guarded, refund_once)
            here.name = "in process"
            yield [here, OverHttp(store, program, attached(gated, saver))]


@asynccontextmanager
async def _gateway(folder: Path, store_url: str) -> AsyncGenerator[tuple[str, str]]:
    """Run `twokey gateway`; give its URL and an API key."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{found.getsockname()[1]}"
    (folder / "policy.yml").write_text(RULES, encoding="utf-8")
    document = {
        "policy": str(folder / "policy.yml"),
        "data_dir": str(folder),
        "api": {"listen": listen},
    }
    (folder / "twokey.yml").write_text(json.dumps(document), encoding="utf-8")
    env = {
        **{name: one for name, one in os.environ.items() if "TWOKEY" not in name},
        "TWOKEY_REDIS_URL": store_url,
        "TWOKEY_SECRET": SECRETS[0].hex(),
    }
    made = await _started(
        folder, env, "api-keys", "create", "b", "--agent", AGENT, "--json"
    )
    said, _ = await made.communicate()
    if made.returncode:
        raise NotMeasured(f"No API key: {(folder / 'log').read_text()[-500:]}")
    key = str(json.loads(said)["key"])
    process = await _started(folder, env, "gateway")
    try:
        await _until_ready(f"http://{listen}")
        yield f"http://{listen}", key
    finally:
        process.terminate()
        await process.wait()


async def _started(
    folder: Path, env: Mapping[str, str], *words: str
) -> asyncio.subprocess.Process:
    config = str(folder / "twokey.yml")
    with (folder / "log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "twokey", "--config", config, *words),
            env=env,
            stdout=asyncio.subprocess.PIPE if words[0] == "api-keys" else log,
            stderr=log,
        )


async def _until_ready(url: str) -> None:
    ends_s = time.monotonic() + _READY_S
    async with httpx.AsyncClient(base_url=url) as client:
        while time.monotonic() < ends_s:
            with suppress(httpx.HTTPError):
                if (await client.get("/healthz")).is_success:
                    return
            await asyncio.sleep(0.05)
    raise NotMeasured("The gateway did not become ready.")
