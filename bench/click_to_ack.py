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

from bench import progress
from bench.clicks import PreparedClick, ensure_decided, prepare
from bench.load import Report, fire
from bench.processes import worked_s
from bench.serve import Name, Served, serving, settings_of
from bench.stats import Figure, Measured, NotMeasured, result
from bench.world import durable_store
from keyturn.sandbox.server import Sandbox

MANY = 20
"""Connections for the throughput."""

_LOOK_S, _MOST_LOOKS = 0.2, 300
_IDLE = 0.1
"""Processor share of an idle bot, which checks its store, its lease and its clock."""

_AFTER_THE_ANSWER = {"chat.update", "chat.postMessage"}
"""The publisher's calls for an acknowledged decision."""


Rows = dict[Name, list[tuple[float, ...]]]


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both alternately and compare them."""
    rounds, alone, together = (1, 20, 100) if is_quick else (5, 60, 300)
    taken_ms: Rows = {"keyturn": [], "bolt": []}
    rates: Rows = {"keyturn": [], "bolt": []}
    size = 0
    async with (
        durable_store() as (store, _),
        Sandbox() as sandbox,
        serving(settings_of("bolt", store, sandbox)) as bolt,
    ):
        for turn in range(rounds):
            progress(f"clicks: round {turn + 1} of {rounds}")
            clicks = await prepare(store, sandbox, 1 + alone + together)
            async with serving(settings_of("keyturn", store, sandbox)) as keyturn:
                # The order alternates, so that neither always has the warmer machine.
                both: list[tuple[Name, Served]] = [("keyturn", keyturn), ("bolt", bolt)]
                for _, served in both:
                    await _fired(served, clicks[:1], connections=1)
                calls = len(sandbox.calls)
                for name, served in both[:: (-1) ** turn]:
                    await _until_idle(keyturn, bolt)
                    some = clicks[1 : 1 + alone]
                    report = await _fired(served, some, connections=1)
                    taken_ms[name].append(tuple(report.taken_ms))
                for name, served in both[:: (-1) ** turn]:
                    await _until_idle(keyturn, bolt)
                    some = clicks[1 + alone :]
                    report = await _fired(served, some, connections=MANY)
                    rates[name].append((report.per_second,))
                methods = {call.method for call in sandbox.calls[calls:]}
                if asked := methods - _AFTER_THE_ANSWER:
                    why = f"Slack was asked before an answer: {sorted(asked)}."
                    raise NotMeasured(why)
            await ensure_decided(store, clicks)
            size = len(clicks[-1].request.body)
    return _figure(
        f"{rounds} rounds; {alone} clicks over 1 connection, {together} "
        f"over {MANY}; bodies of {size} bytes;\nKeyturn records every decision (Valkey "
        "with appendfsync always), Bolt does nothing.",
        taken_ms,
        rates,
    )


def _figure(about: str, taken_ms: Rows, rates: Rows) -> Figure:
    names: tuple[tuple[Name, str], ...] = (
        ("keyturn", "Keyturn"),
        ("bolt", "default Bolt"),
    )
    alone, together = (
        tuple(
            Measured(f"{shown}, {connections}", unit, tuple(rows[name]))
            for name, shown in names
        )
        for rows, connections, unit in (
            (taken_ms, "1 connection", "ms"),
            (rates, f"{MANY} connections", "/s"),
        )
    )
    return Figure(
        "Click to acknowledgement",
        about,
        (*alone, *together),
        (
            result("click: Keyturn / default Bolt, p50", *alone, at_most=0.5),
            result(
                f"clicks/s: Keyturn / default Bolt, {MANY} connections",
                *together,
                at_least=0.2,
            ),
        ),
    )


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
