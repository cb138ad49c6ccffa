"""Measure the latency from a click in Slack to its acknowledgement.

The servers get signed requests from the same load generator, each in processes of its
own, in turns:

- Twokey: the whole bot. Before the clicks it has read what waits and computed what a
  click on it writes, but for who and when, as it does in quiet moments
  (`docs/decisions/0015-precomputed-decisions.md`); that takes about as long as two
  decisions and is not measured here. Each click is the first decision on an approval of
  its own; it is recorded in a durable Valkey, with its job, event and audit entry,
  before the answer. Afterwards every approval must really be decided, else this fails.
- Twokey, two workers: the same as `twokey bot --workers 2` runs it, in two processes
  that answer and one that publishes.
- one script: an aiohttp server that checks the signature, reads the payload and runs
  one durable script; and one that also replies by the click's response URL. Nothing
  that answers clicks in Python is faster than these, so they are the limit of ours.
- default Bolt: `AsyncApp` as its documentation shows it, with one listener that does
  nothing but ``await ack()``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from bench.click_bounds import BOT, SLACK, STORE, ClickCost, bounds, cost_of
from bench.clicks import PreparedClick, clicks_on, ensure_decided, post_cards
from bench.load import Report, fire
from bench.processors import with_descendants, worked_s
from bench.progress import progress
from bench.restored import restore, saved
from bench.serve import Name, Served, serving, settings_of
from bench.stats import Figure, Measured, NotMeasured, ratio
from bench.store_secrets import SECRETS
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.store import Store
from twokey.sandbox.server import Sandbox

TITLE = "Click to acknowledgement"
MANY = 20
"""Connections for the throughput."""

_LOOK_S, _MOST_LOOKS = 0.2, 300
_IDLE = 0.1
"""Of a processor: a bot that waits looks at its store, its lease and its clock."""

_AFTER_THE_ANSWER = {"chat.update", "chat.postMessage"}
"""What the publisher does about a decision that was acknowledged."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: clicks a round over one connection, and over many."""

    rounds: int
    alone: int
    together: int


FULL = Plan(rounds=5, alone=100, together=1_200)
QUICK = Plan(rounds=1, alone=20, together=100)


@dataclass(slots=True)
class _Samples:
    """What one server did, by round."""

    name: str
    alone_ms: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    rates: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    costs: list[dict[str, float]] = field(default_factory=list[dict[str, float]])

    def alone(self) -> Measured:
        return Measured(f"{self.name}, 1 connection", "ms", tuple(self.alone_ms))

    def together(self) -> Measured:
        name = f"{self.name}, {MANY} connections"
        return Measured(name, "/s", tuple(self.rates))

    def add(self, report: Report) -> None:
        """Take what many connections came to."""
        self.rates.append((report.per_second,))
        self.costs.append(report.processor_ms)

    def cost(self) -> ClickCost:
        """Return what a click over many connections costs each process."""
        return cost_of(self.costs)


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both in turns and compare them."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Run both as often as the plan says."""
    found: dict[Name, _Samples] = {
        "twokey": _Samples("Twokey"),
        "two_workers": _Samples("Twokey, two workers"),
        "bolt": _Samples("default Bolt"),
        "one_script": _Samples("one script"),
        "one_script_and_reply": _Samples("one script and a reply"),
        "two_of_one_script_and_reply": _Samples("two processes of that"),
    }
    size = 0
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(TemporaryDirectory(prefix="tk-bench-"))
        sandbox = await opened.enter_async_context(Sandbox())
        store = await opened.enter_async_context(
            open_store(None, Path(folder), secrets=SECRETS)
        )
        progress("clicks: opening approvals")
        count = 1 + plan.alone + plan.together
        posted = await post_cards(store, sandbox, count)
        bench = _Bench(store, sandbox, plan, found, await saved(store))
        peers = await opened.enter_async_context(bench.peers())
        for turn in range(plan.rounds):
            progress(f"clicks: round {turn + 1} of {plan.rounds}")
            clicks = clicks_on(sandbox, posted)
            async with bench.put_back(clicks):
                await bench.compare(peers["bolt"], clicks, turn)
                await bench.least(peers, clicks)
            async with bench.put_back(clicks):
                await bench.workers(peers, clicks)
            size = len(clicks[-1].request.body)
    ours, bolts = found["twokey"], found["bolt"]
    workers = found["two_workers"].together()
    least, replying = found["one_script"], found["one_script_and_reply"]
    two = found["two_of_one_script_and_reply"]
    alone, together = (ours.alone(), bolts.alone()), (ours.together(), bolts.together())
    return Figure(
        TITLE,
        f"{plan.rounds} rounds; {plan.alone} clicks over 1 connection, {plan.together} "
        f"over {MANY}; bodies of {size} bytes;\nTwokey records every decision (Valkey "
        "with appendfsync always), Bolt does nothing.\n"
        "What a click writes was computed before, but for who and when, while nobody\n"
        "clicked. Cards are drawn after the clicks, a second later at most, before\n"
        "the next is measured. The limit is an aiohttp server that\n"
        "only checks the signature and runs one durable script a click, and one that\n"
        "also replies once by the response URL.",
        (
            *alone,
            *together,
            workers,
            least.alone(),
            least.together(),
            replying.together(),
            two.together(),
        ),
        (
            ratio(
                "click: Twokey / default Bolt, p50",
                *alone,
                at_most=0.2,
                limit=_limit(alone[1], least.alone()),
            ),
            ratio(
                f"clicks/s: Twokey / default Bolt, {MANY} connections",
                *together,
                at_least=1.2,
                limit=_limit(together[1], least.together(), replying.together())
                + f"; {_bounds(ours, least, bolts, bots=1)}",
            ),
            ratio(
                f"clicks/s: two workers / default Bolt, {MANY} connections",
                workers,
                together[1],
                at_least=2.0,
                limit=f"two bare processes that also reply: "
                f"{two.together().at(0.5):.1f} /s = "
                f"{two.together().at(0.5) / together[1].at(0.5):.2f}; "
                + _bounds(found["two_workers"], least, bolts, bots=2),
            ),
            ratio(
                f"clicks/s: two workers / two bare processes, {MANY} connections",
                workers,
                two.together(),
            ),
            ratio(
                f"clicks/s: Twokey / one script and a reply, {MANY} connections",
                together[0],
                replying.together(),
            ),
        ),
    )


def _limit(bolt: Measured, least: Measured, replying: Measured | None = None) -> str:
    base = bolt.at(0.5)
    texts = [f"an empty default Bolt listener: {base:.1f} {bolt.unit}"]
    texts += [
        f"{name}: {one.at(0.5):.1f} {one.unit} = {one.at(0.5) / base:.2f}"
        for name, one in (("one script", least), ("one script and a reply", replying))
        if one is not None
    ]
    return "; ".join(texts)


def _bounds(ours: _Samples, bare: _Samples, bolt: _Samples, *, bots: int) -> str:
    costs = ours.cost(), bare.cost(), bolt.cost()
    return bounds(*costs, bots=bots, processors=os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class _Bench:
    """What all rounds are measured with.

    Attributes:
        store: where every round finds the same approvals, none of them decided.
        sandbox: the stand-in for Slack.
        plan: how much to measure.
        found: what was measured, by server.
        kept: the store as it was before the first click.
    """

    store: Store
    sandbox: Sandbox
    plan: Plan
    found: dict[Name, _Samples]
    kept: dict[bytes, bytes]

    @asynccontextmanager
    async def peers(self) -> AsyncGenerator[dict[Name, Served]]:
        """Serve all but Twokey: they know nothing of a store that was put back.

        They do nothing while nobody clicks, so they take no time from who is measured.
        """
        names: tuple[Name, ...] = (
            "bolt",
            "one_script",
            "one_script_and_reply",
            "two_of_one_script_and_reply",
        )
        async with AsyncExitStack() as opened:
            served = await asyncio.gather(
                *(opened.enter_async_context(self._serving(name)) for name in names)
            )
            yield dict(zip(names, served, strict=True))

    @asynccontextmanager
    async def put_back(self, clicks: Sequence[PreparedClick]) -> AsyncGenerator[None]:
        """Begin with the store as it was; afterwards the clicks have to be decided."""
        await restore(self.store, self.kept)
        yield
        reader = Store(self.store.conn.url, secrets=SECRETS)
        try:
            await ensure_decided(reader, clicks)
        finally:
            await reader.close()

    async def workers(
        self, peers: Mapping[Name, Served], clicks: Sequence[PreparedClick]
    ) -> None:
        """Measure two workers alone: their publisher must not be that of another bot.

        Then two processes of the least that replies, with the same clicks.
        """
        async with self._serving("two_workers") as served:
            await self._together_alone("two_workers", served, clicks)
        name: Name = "two_of_one_script_and_reply"
        await self._together_alone(name, peers[name], clicks)

    async def least(
        self, peers: Mapping[Name, Served], clicks: Sequence[PreparedClick]
    ) -> None:
        """Measure the least that these clicks cost, one server after the other."""
        first, rest = clicks[:1], clicks[1:]
        names: tuple[Name, Name] = ("one_script", "one_script_and_reply")
        for name in names:
            served, alone = peers[name], self.plan.alone
            await _fired(served, first, connections=1)
            report = await _fired(served, rest[:alone], connections=1)
            self.found[name].alone_ms.append(tuple(report.taken_ms))
            await _until_idle(served)
            self.found[name].add(await self._together(served, rest[alone:]))

    async def compare(
        self, bolt: Served, clicks: Sequence[PreparedClick], turn: int
    ) -> None:
        """Measure Twokey and Bolt in turns, neither while the other one works."""
        first, rest = clicks[:1], clicks[1:]
        alone, sandbox = self.plan.alone, self.sandbox
        async with self._serving("twokey") as twokey:
            # Who goes first changes, so that nobody always has the warmer machine.
            both: list[tuple[Name, Served]] = [("twokey", twokey), ("bolt", bolt)]
            both = both[:: 1 if turn % 2 == 0 else -1]
            for _, served in both:
                await _fired(served, first, connections=1)
            calls = len(sandbox.calls)
            for name, served in both:
                await _until_idle(twokey, bolt)
                report = await _fired(served, rest[:alone], connections=1)
                self.found[name].alone_ms.append(tuple(report.taken_ms))
            for name, served in both:
                await _until_idle(twokey, bolt)
                self.found[name].add(await self._together(served, rest[alone:]))
            methods = {call.method for call in sandbox.calls[calls:]}
            if asked := methods - _AFTER_THE_ANSWER:
                raise NotMeasured(f"Slack was asked before an answer: {sorted(asked)}.")

    async def _together_alone(
        self, name: Name, served: Served, clicks: Sequence[PreparedClick]
    ) -> None:
        alone = self.plan.alone
        first, others, rest = clicks[:1], clicks[1 : 1 + alone], clicks[1 + alone :]
        # As many before as one process has had: each of these has just started, too.
        for warming in (first, others):
            await _fired(served, warming, connections=MANY)
            await _until_idle(served)
        self.found[name].add(await self._together(served, rest))

    async def _together(
        self, served: Served, clicks: Sequence[PreparedClick]
    ) -> Report:
        """Click over many connections, and look who works meanwhile."""
        info = await self.store.conn.command("INFO", "server")
        watched = {
            # It runs in this process, which does nothing else meanwhile.
            SLACK: [os.getpid()],
            STORE: [cast("dict[str, int]", info)["process_id"]],
            BOT: with_descendants(served.process),
        }
        return await _fired(served, clicks, connections=MANY, watched=watched)

    def _serving(self, name: Name) -> AbstractAsyncContextManager[Served]:
        return serving(settings_of(name, self.store, self.sandbox))


async def _until_idle(*servers: Served) -> None:
    """Wait until servers have nothing left to do.

    A bot draws the cards of its clicks after them. On the same processors, that would
    slow down whoever is measured next.

    Raises:
        NotMeasured: when one goes on and on.
    """
    processes = [one for each in servers for one in with_descendants(each.process)]
    for _ in range(_MOST_LOOKS):
        before_s = worked_s(processes)
        await asyncio.sleep(_LOOK_S)
        if worked_s(processes) - before_s < _IDLE * _LOOK_S:
            return
    raise NotMeasured("A server did not come to rest before the next measurement.")


async def _fired(
    served: Served,
    clicks: Sequence[PreparedClick],
    *,
    connections: int,
    watched: Mapping[str, Sequence[int]] | None = None,
) -> Report:
    requests = [click.request for click in clicks]
    report = await fire(served.url, requests, connections=connections, watched=watched)
    if report.statuses != {"200": len(clicks)}:
        raise NotMeasured(
            f"Not every click at {served.url!r} got 200: {report.statuses}."
        )
    return report
