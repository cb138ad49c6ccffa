"""Measure the latency from a click in Slack to its acknowledgement.

The servers get signed requests from the same load generator, each in processes of its
own, in turns:

- Twokey: the whole bot. Each click is the first decision on an approval of its own; it
  is recorded in a durable Valkey, with its job, event and audit entry, before the
  answer. Afterwards every approval must really be decided, else this fails.
- Twokey, two workers: the same as `twokey bot --workers 2` runs it, in two processes
  that answer and one that publishes.
- default Bolt: `AsyncApp` as its documentation shows it, with one listener that does
  nothing but ``await ack()``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.clicks import PreparedClick, ensure_decided, prepare
from bench.load import Report, fire
from bench.progress import progress
from bench.serve import Name, ServerSettings, serving
from bench.stats import Figure, Measured, NotMeasured, ratio
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.store import Store
from twokey.sandbox.server import Sandbox

TITLE = "Click to acknowledgement"
MANY = 20
"""Connections for the throughput."""

_AFTER_THE_ANSWER = {"chat.update", "chat.postMessage"}
"""What the publisher does about a decision that was acknowledged."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: clicks a round over one connection, and over many."""

    rounds: int
    alone: int
    together: int


FULL = Plan(rounds=6, alone=100, together=600)
QUICK = Plan(rounds=2, alone=20, together=100)


@dataclass(slots=True)
class _Samples:
    """What one server did, by round."""

    name: str
    alone_ms: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    rates: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])

    def alone(self) -> Measured:
        return Measured(f"{self.name}, 1 connection", "ms", tuple(self.alone_ms))

    def together(self) -> Measured:
        name = f"{self.name}, {MANY} connections"
        return Measured(name, "/s", tuple(self.rates))


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both in turns and compare them."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Run both as often as the plan says."""
    found: dict[Name, _Samples] = {
        "twokey": _Samples("Twokey"),
        "two_workers": _Samples("Twokey, two workers"),
        "bolt": _Samples("default Bolt"),
    }
    size = 0
    with TemporaryDirectory(prefix="tk-bench-") as folder:
        for turn in range(plan.rounds):
            async with Sandbox() as sandbox, open_store(None, Path(folder)) as store:
                progress(f"clicks: round {turn + 1} of {plan.rounds}")
                count = 1 + plan.alone + plan.together
                clicks = await prepare(store, sandbox, count + 1 + plan.together)
                size = len(clicks[-1].request.body)
                await _round(store, sandbox, clicks[:count], plan, found, turn)
                await _workers(store, sandbox, clicks[count:], found["two_workers"])
                await ensure_decided(store, clicks)
    ours, bolts = found["twokey"], found["bolt"]
    workers = found["two_workers"].together()
    alone, together = (ours.alone(), bolts.alone()), (ours.together(), bolts.together())
    return Figure(
        TITLE,
        f"{plan.rounds} rounds; {plan.alone} clicks over 1 connection, {plan.together} "
        f"over {MANY}; bodies of {size} bytes;\nTwokey records every decision (Valkey "
        "with appendfsync always), Bolt does nothing.",
        (*alone, *together, workers),
        (
            ratio(
                "click: Twokey / default Bolt, p50",
                *alone,
                at_most=0.2,
                limit=_bolt(alone[1]),
            ),
            ratio(
                f"clicks/s: Twokey / default Bolt, {MANY} connections",
                *together,
                at_least=1.2,
                limit=_bolt(together[1]),
            ),
            ratio(
                f"clicks/s: two workers / default Bolt, {MANY} connections",
                workers,
                together[1],
                at_least=2.0,
                limit=f"{os.cpu_count()} processors, shared with the load generator, "
                "Slack and the store",
            ),
        ),
    )


def _bolt(measured: Measured) -> str:
    return f"an empty default Bolt listener: {measured.at(0.5):.1f} {measured.unit}"


async def _workers(
    store: Store, sandbox: Sandbox, clicks: Sequence[PreparedClick], found: _Samples
) -> None:
    """Measure two workers alone: their publisher must not be that of another bot."""
    async with serving(_settings("two_workers", store, sandbox)) as url:
        await _fired(url, clicks[:1], connections=1)
        report = await _fired(url, clicks[1:], connections=MANY)
    found.rates.append((report.per_second,))


async def _round(
    store: Store,
    sandbox: Sandbox,
    clicks: Sequence[PreparedClick],
    plan: Plan,
    found: dict[Name, _Samples],
    turn: int,
) -> None:
    first, rest = clicks[:1], clicks[1:]
    async with (
        serving(_settings("twokey", store, sandbox)) as twokey,
        serving(_settings("bolt", store, sandbox)) as bolt,
    ):
        # Who goes first changes, so that nobody always has the warmer machine.
        both: list[tuple[Name, str]] = [("twokey", twokey), ("bolt", bolt)]
        both = both[:: 1 if turn % 2 == 0 else -1]
        for _, url in both:
            await _fired(url, first, connections=1)
        calls = len(sandbox.calls)
        for name, url in both:
            report = await _fired(url, rest[: plan.alone], connections=1)
            found[name].alone_ms.append(tuple(report.taken_ms))
        for name, url in both:
            report = await _fired(url, rest[plan.alone :], connections=MANY)
            found[name].rates.append((report.per_second,))
        asked = {call.method for call in sandbox.calls[calls:]} - _AFTER_THE_ANSWER
        if asked:
            raise NotMeasured(f"Slack was asked before an answer: {sorted(asked)}.")


async def _fired(
    url: str, clicks: Sequence[PreparedClick], *, connections: int
) -> Report:
    requests = [click.request for click in clicks]
    report = await fire(url, requests, connections=connections)
    if report.statuses != {"200": len(clicks)}:
        raise NotMeasured(f"Not every click at {url!r} got 200: {report.statuses}.")
    return report


def _settings(name: Name, store: Store, sandbox: Sandbox) -> ServerSettings:
    return ServerSettings(
        name=name,
        store_url=store.conn.url,
        api_url=sandbox.api_url,
        bot_token=sandbox.bot_token,
        signing_secret=sandbox.signing_secret,
    )
