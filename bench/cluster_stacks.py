"""Compare two bots and two gateways on a cluster with one of each on one store.

Threads of an agent wait for a person each. All of their cards are clicked at once, and
the time runs until the last tool has run: ingress, decision, job, lease, resume, claim
and effect. Each tool has to have run exactly once, else this fails.

The cluster has three masters; the workspace is one tenant, so its keys are on one of
them. Postgres keeps the checkpoints of both. All processes share this machine with the
load generator and the sandbox: more machines are not measured, more processes are.
The limit is how much of the processors one of each keeps busy: twice as many processes
do at most what the rest of the machine is good for.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.clicks import AGENT, POLICY, PreparedClick, click_on
from bench.load import Report, fire
from bench.processors import used_s
from bench.progress import progress
from bench.serve import ServerSettings, serving
from bench.stats import MEDIAN, Figure, Measured, NotMeasured, ratio
from bench.store_secrets import SECRETS
from tests.resume import postgres_server
from tests.resume.postgres_server import NoPostgres, fresh_database
from tests.topologies import Cluster, programs
from twokey.gateway.protocol.records import Person, RunRef
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.store import Store
from twokey.gateway.store.turn_opening import Listed
from twokey.sandbox.server import Sandbox

TITLE = "Two bots and two gateways on a cluster"
CONNECTIONS = 20

_DAN = Person(team="T0SANDBOX", user="U0DAN", name="Dan")
_WITHIN_S = 180.0
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: rounds, and threads in each."""

    rounds: int
    threads: int


FULL = Plan(rounds=3, threads=200)
QUICK = Plan(rounds=1, threads=6)


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both in turns and compare them."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Run both as often as the plan says.

    Raises:
        NotMeasured: without a server for a cluster or a Postgres, or when a tool did
            not run exactly once.
    """
    program = next(iter(programs().values()), None)
    if program is None:
        raise NotMeasured("There is no Redis or Valkey server to form a cluster of.")
    ones: list[_Done] = []
    twos: list[_Done] = []
    try:
        with postgres_server.running() as postgres:
            for turn in range(plan.rounds):
                progress(f"cluster: round {turn + 1} of {plan.rounds}")
                with TemporaryDirectory(prefix="tk-bench-") as folder:
                    place = Path(folder)
                    async with open_store(
                        None, place / "one", secrets=SECRETS
                    ) as store:
                        work = _Work(store, fresh_database(postgres), place / "1.txt")
                        ones.append(await work.done(1, plan.threads))
                    with Cluster(program, place / "cluster") as cluster:
                        store = Store(cluster.url, secrets=SECRETS)
                        work = _Work(store, fresh_database(postgres), place / "2.txt")
                        try:
                            twos.append(await work.done(2, plan.threads))
                        finally:
                            await store.close()
    except NoPostgres as missing:
        raise NotMeasured(str(missing)) from missing
    one = _per_second("one of each on one store", ones)
    two = _per_second("two of each on a cluster", twos)
    busy_one = _busy("processors that one of each keeps busy", ones)
    busy_two = _busy("processors that two of each keep busy", twos)
    return Figure(
        TITLE,
        f"{plan.rounds} rounds of {plan.threads} clicks over {CONNECTIONS} connections,"
        " until every tool has run once;\nappendfsync always, checkpoints in Postgres.",
        (one, two, busy_one, busy_two),
        (
            ratio(
                "calls/s: two bots and gateways on a cluster / one of each",
                two,
                one,
                at_least=1.4,
                limit=_limit(busy_one.at(MEDIAN)),
            ),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Done:
    """What one round did.

    Attributes:
        per_second: calls from their click to their effect.
        busy: processors of the machine that had work meanwhile, 2.0 for two of them.
    """

    per_second: float
    busy: float


def _per_second(name: str, rounds: Sequence[_Done]) -> Measured:
    return Measured(name, "/s", tuple((one.per_second,) for one in rounds))


def _busy(name: str, rounds: Sequence[_Done]) -> Measured:
    return Measured(name, "", tuple((one.busy,) for one in rounds))


def _limit(busy: float) -> str:
    count = os.cpu_count() or 1
    if not busy:
        return f"all processes share {count} processors"
    return (
        f"one of each, its store and the load keep {busy:.2f} of {count} processors "
        f"busy, so that there is room for {count / busy:.2f} of them"
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """The work on one store, with checkpoints and a file of effects of its own."""

    store: Store
    checkpoints: str
    effects: Path

    async def done(self, processes: int, threads: int) -> _Done:
        """Let every thread wait, click on all cards, and see every tool run."""
        names = [f"thread-{number}" for number in range(threads)]
        async with AsyncExitStack() as opened:
            sandbox = await opened.enter_async_context(Sandbox())
            gateway = ServerSettings(
                name="gateway",
                store_url=self.store.conn.url,
                api_url=sandbox.api_url,
                bot_token=sandbox.bot_token,
                signing_secret=sandbox.signing_secret,
                checkpoints=self.checkpoints,
                effects=str(self.effects),
            )
            for _ in range(processes):
                await opened.enter_async_context(serving(gateway))
            clicks = await self._waiting(sandbox, names)
            bot = ServerSettings(
                name="twokey",
                store_url=self.store.conn.url,
                api_url=sandbox.api_url,
                bot_token=sandbox.bot_token,
                signing_secret=sandbox.signing_secret,
            )
            bots = [
                await opened.enter_async_context(serving(bot)) for _ in range(processes)
            ]
            urls = [one.url for one in bots]
            used, began = used_s(), time.perf_counter()
            seconds = await self._clicked(urls, clicks, threads)
            busy = (used_s() - used) / (time.perf_counter() - began)
            if sorted(self._done()) != sorted(names):
                raise NotMeasured("A tool ran twice, or one that nobody asked for.")
        return _Done(threads / seconds, busy)

    async def _waiting(
        self, sandbox: Sandbox, names: Sequence[str]
    ) -> list[PreparedClick]:
        """Let every thread ask, and return a click on the card of each."""
        reviews = ReviewService(self.store, lambda: POLICY)
        for name in names:
            await reviews.ask_agent(AGENT, name, name, requester=_DAN, origin=None)
        clicks: list[PreparedClick] = []
        async with asyncio.timeout(_WITHIN_S):
            for name in names:
                while not await self._asked(name):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(_LOOK_S)
                (listed,) = await self._asked(name)
                loaded = await reviews.read(listed.id)
                assert loaded is not None, listed
                clicks.append(await click_on(self.store, sandbox, loaded.approval))
        return clicks

    async def _asked(self, name: str) -> list[Listed]:
        keys = self.store.keys_of_tenant("default")
        run_ref = RunRef(agent=AGENT, thread=name)
        return await self.store.approvals.of_run(keys, "default", run_ref)

    async def _clicked(
        self, urls: Sequence[str], clicks: Sequence[PreparedClick], threads: int
    ) -> float:
        """Click on all cards; return the seconds until every tool has run."""

        async def click(place: int) -> Report:
            requests = [one.request for one in clicks[place :: len(urls)]]
            connections = CONNECTIONS // len(urls)
            return await fire(urls[place], requests, connections=connections)

        reports = await asyncio.gather(*map(click, range(len(urls))))
        if any(report.statuses.keys() != {"200"} for report in reports):
            raise NotMeasured(f"Not every click got 200: {reports!r}.")
        # From the first request on, and not from the start of the process that sends.
        clicked, began = max(report.seconds for report in reports), time.perf_counter()
        async with asyncio.timeout(_WITHIN_S):
            while len(self._done()) < threads:  # noqa: ASYNC110 - other processes
                await asyncio.sleep(_LOOK_S)
        return clicked + time.perf_counter() - began

    def _done(self) -> list[str]:
        if not self.effects.exists():
            return []
        return self.effects.read_text(encoding="utf-8").split()
