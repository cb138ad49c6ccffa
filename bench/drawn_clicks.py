"""Measure how many clicks a second one process keeps up with, drawing included.

`click_to_ack` counts answers: cards are drawn afterwards. A load that never pauses also
needs each card drawn and sent to Slack by the same process. Here the clock runs from
the first click until Slack has the last card as it was decided.

The default Bolt listener, which draws nothing, gets the same requests for comparison.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.click_to_ack import MANY
from bench.clicks import PreparedClick, ensure_decided, prepare
from bench.load import fire
from bench.progress import progress
from bench.serve import serving, settings_of
from bench.stats import Figure, Measured, NotMeasured, ratio
from bench.store_secrets import SECRETS
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.store import Store
from twokey.sandbox.server import Sandbox

TITLE = "Clicks with their cards"

_WITHIN_S = 120.0
_LOOK_S = 0.02
_FULL, _QUICK = (4, 400), (1, 60)


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both in turns and compare them."""
    return await measured(*(_QUICK if is_quick else _FULL))


async def measured(rounds: int, count: int) -> Figure:
    """Fire so many clicks in each round.

    Raises:
        NotMeasured: when a click decided nothing, or its card was not drawn.
    """
    answered, drawn, bolt = (list[tuple[float, ...]]() for _ in range(3))
    with TemporaryDirectory(prefix="tk-bench-") as folder:
        for turn in range(rounds):
            progress(f"clicks with their cards: round {turn + 1} of {rounds}")
            async with (
                Sandbox() as sandbox,
                open_store(None, Path(folder), secrets=SECRETS) as store,
            ):
                clicks = await prepare(store, sandbox, count)
                rates = await _with_cards(store, sandbox, clicks)
                answered.append((rates[0],))
                drawn.append((rates[1],))
                bolt.append((await _of_bolt(store, sandbox, clicks),))
                await ensure_decided(store, clicks)
    both = Measured("Twokey, answered and drawn", "/s", tuple(drawn))
    alone = Measured("Twokey, answered", "/s", tuple(answered))
    empty = Measured("default Bolt, answered", "/s", tuple(bolt))
    return Figure(
        TITLE,
        f"{rounds} rounds of {count} clicks over {MANY} connections, one process, each "
        "on an approval of its own.\nThe card of each is replaced by the click's "
        "response URL; Bolt does nothing.",
        (both, alone, empty),
        (
            ratio("clicks/s with cards: Twokey / default Bolt without", both, empty),
            ratio("clicks/s: Twokey with cards / without", both, alone),
        ),
    )


async def _with_cards(
    store: Store, sandbox: Sandbox, clicks: Sequence[PreparedClick]
) -> tuple[float, float]:
    """Return how many clicks a second were answered, and were answered and drawn."""
    async with serving(settings_of("twokey", store, sandbox)) as served:
        report = await fire(
            served.url, [one.request for one in clicks], connections=MANY
        )
        answered = time.perf_counter()
        await _until_drawn(store, clicks)
        seconds = report.seconds + time.perf_counter() - answered
        return report.per_second, len(clicks) / seconds


async def _of_bolt(
    store: Store, sandbox: Sandbox, clicks: Sequence[PreparedClick]
) -> float:
    async with serving(settings_of("bolt", store, sandbox)) as served:
        requests = [one.request for one in clicks]
        return (await fire(served.url, requests, connections=MANY)).per_second


async def _until_drawn(store: Store, clicks: Sequence[PreparedClick]) -> None:
    try:
        async with asyncio.timeout(_WITHIN_S):
            for click in clicks:
                while not await _is_drawn(store, click.approval):  # noqa: ASYNC110 - the bot sets no event
                    await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise NotMeasured(f"Not every card was drawn in {_WITHIN_S:.0f} s.") from None


async def _is_drawn(store: Store, approval: str) -> bool:
    place = await store.cards.place(store.keys_of_tenant("default"), approval)
    loaded = await store.approvals.load(approval)
    return bool(place and loaded and place.rev >= loaded.approval.rev)
