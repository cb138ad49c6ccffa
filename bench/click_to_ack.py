"""Measure the latency from a click in Slack to its acknowledgement.

Both servers get signed requests from the same load generator, alternately, each in a
separate process:

- Keyturn: the whole bot. Each click is the first decision on a separate approval. The
  decision is in a durable Valkey, with its job, event and audit entry, before the
  answer. Afterwards every approval must be decided, or the measurement fails.
- default Bolt: `AsyncApp` as in its documentation, with one listener that only runs
  ``await ack()``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
)
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import SECRETS, progress
from bench.clicks import PreparedClick, ensure_decided, prepare
from bench.load import Report, fire
from bench.processes import worked_s
from bench.serve import Name, Served, serving, settings_of
from bench.stats import Figure, Measured, NotMeasured, ratio
from keyturn.gateway.store.open_store import open_store
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox

TITLE = "Click to acknowledgement"
MANY = 20
"""Connections for the throughput."""

_LOOK_S, _MOST_LOOKS = 0.2, 300
_IDLE = 0.1
"""Processor share of an idle bot, which checks its store, its lease and its clock."""

_AFTER_THE_ANSWER = {"chat.update", "chat.postMessage"}
"""The publisher's calls for an acknowledged decision."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work: clicks a round over one connection, and over many."""

    rounds: int
    alone: int
    together: int


FULL = Plan(rounds=5, alone=60, together=300)
QUICK = Plan(rounds=1, alone=20, together=100)


@dataclass(slots=True)
class _Samples:
    """The results of one server, by round."""

    name: str
    alone_ms: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    rates: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])

    def alone(self) -> Measured:
        return Measured(f"{self.name}, 1 connection", "ms", tuple(self.alone_ms))

    def together(self) -> Measured:
        name = f"{self.name}, {MANY} connections"
        return Measured(name, "/s", tuple(self.rates))

    def add(self, report: Report) -> None:
        """Add the result over many connections."""
        self.rates.append((report.per_second,))


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both alternately and compare them."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Run both according to the plan."""
    found: dict[Name, _Samples] = {
        "keyturn": _Samples("Keyturn"),
        "bolt": _Samples("default Bolt"),
    }
    size = 0
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(TemporaryDirectory(prefix="tk-bench-"))
        sandbox = await opened.enter_async_context(Sandbox())
        store = await opened.enter_async_context(
            open_store(None, Path(folder), secrets=SECRETS)
        )
        bench = _Bench(store, sandbox, plan, found)
        bolt = await opened.enter_async_context(bench.serving_one("bolt"))
        for turn in range(plan.rounds):
            progress(f"clicks: round {turn + 1} of {plan.rounds}")
            clicks = await prepare(store, sandbox, 1 + plan.alone + plan.together)
            await bench.compare(bolt, clicks, turn)
            await ensure_decided(store, clicks)
            size = len(clicks[-1].request.body)
    ours, bolts = found["keyturn"], found["bolt"]
    alone, together = (ours.alone(), bolts.alone()), (ours.together(), bolts.together())
    return Figure(
        TITLE,
        f"{plan.rounds} rounds; {plan.alone} clicks over 1 connection, {plan.together} "
        f"over {MANY}; bodies of {size} bytes;\nKeyturn records every decision (Valkey "
        "with appendfsync always), Bolt does nothing.",
        (*alone, *together),
        (
            ratio("click: Keyturn / default Bolt, p50", *alone, at_most=0.5),
            ratio(
                f"clicks/s: Keyturn / default Bolt, {MANY} connections",
                *together,
                at_least=0.2,
            ),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    """The shared environment of all rounds.

    Attributes:
        store: the store of the approvals; each round opens new ones.
        sandbox: the stand-in for Slack.
        plan: the amount of work.
        found: the results, by server.
    """

    store: Store
    sandbox: Sandbox
    plan: Plan
    found: dict[Name, _Samples]

    async def compare(
        self, bolt: Served, clicks: Sequence[PreparedClick], turn: int
    ) -> None:
        """Measure Keyturn and Bolt alternately, each while the other one is idle."""
        first, rest = clicks[:1], clicks[1:]
        alone, sandbox = self.plan.alone, self.sandbox
        async with self.serving_one("keyturn") as keyturn:
            # The order alternates, so that neither always has the warmer machine.
            both: list[tuple[Name, Served]] = [("keyturn", keyturn), ("bolt", bolt)]
            both = both[:: 1 if turn % 2 == 0 else -1]
            for _, served in both:
                await _fired(served, first, connections=1)
            calls = len(sandbox.calls)
            for name, served in both:
                await _until_idle(keyturn, bolt)
                report = await _fired(served, rest[:alone], connections=1)
                self.found[name].alone_ms.append(tuple(report.taken_ms))
            for name, served in both:
                await _until_idle(keyturn, bolt)
                self.found[name].add(await self._together(served, rest[alone:]))
            methods = {call.method for call in sandbox.calls[calls:]}
            if asked := methods - _AFTER_THE_ANSWER:
                raise NotMeasured(f"Slack was asked before an answer: {sorted(asked)}.")

    async def _together(
        self, served: Served, clicks: Sequence[PreparedClick]
    ) -> Report:
        return await _fired(served, clicks, connections=MANY)

    def serving_one(self, name: Name) -> AbstractAsyncContextManager[Served]:
        """Serve one of them in a separate process."""
        return serving(settings_of(name, self.store, self.sandbox))


async def _until_idle(*servers: Served) -> None:
    """Wait until servers are idle.

    A bot draws the cards of its clicks after them. On the same processors, that would
    slow down the next measurement.

    Raises:
        NotMeasured: when one does not become idle.
    """
    for _ in range(_MOST_LOOKS):
        before_s = sum(worked_s(one.process) for one in servers)
        await asyncio.sleep(_LOOK_S)
        now_s = sum(worked_s(one.process) for one in servers)
        if now_s - before_s < _IDLE * _LOOK_S:
            return
    raise NotMeasured("A server did not become idle before the next measurement.")


async def _fired(
    served: Served,
    clicks: Sequence[PreparedClick],
    *,
    connections: int,
) -> Report:
    requests = [click.request for click in clicks]
    report = await fire(served.url, requests, connections=connections)
    if report.statuses != {"200": len(clicks)}:
        raise NotMeasured(
            f"Not every click at {served.url!r} got 200: {report.statuses}."
        )
    return report
