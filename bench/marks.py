"""Measure the planted mistakes that marks find, and the honest calls that they mark.

The marks were made with two seeds of the batches in view. The figure is of a third one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from bench.batches import Batch
from bench.mistakes import KINDS, as_card, clean, spoilt
from bench.stats import Figure, Measured, NotMeasured, result
from keyturn.bot.cards.table import noticed
from keyturn.gateway.policy.marks import marks_of

SEEN, UNSEEN = (1, 2), 20_261_130


async def measure(*, is_quick: bool = False) -> Figure:
    """Make batches with a mistake and clean ones, and look at the marked calls."""
    count = 20 if is_quick else 300
    planted, honest = spoilt(UNSEEN, count), clean(UNSEEN, count)
    if {one.mistake for one in planted} != {*KINDS}:
        raise NotMeasured("The batches do not have mistakes of every kind.")
    found = _share("mistakes that are marked", _found(planted))
    false = _share("rows of clean batches that are marked", _marked(honest))
    kinds = [
        _share(kind, _found(one for one in planted if one.mistake == kind))
        for kind in KINDS
    ]
    seen = [one for seed in SEEN for one in spoilt(seed, count // 2)]
    times = Measured("marks of a card", "ms", (_times(honest),))
    return Figure(
        "Marks on the calls of a card",
        f"{count} batches of 7 to 99 calls with one mistake of {len(KINDS)} kinds, and "
        f"{count} without;\nmarked: a row that the card shows on top.",
        (*kinds, _share("mistakes of seeds in view", _found(seen)), times),
        (
            result("mistakes that are marked", found, share=1, at_least=90),
            result("rows of clean batches with a mark", false, share=1, at_most=5),
        ),
    )


def _found(batches: Iterable[Batch]) -> list[bool]:
    return [one.planted in noticed(as_card(one)) for one in batches]


def _marked(batches: Iterable[Batch]) -> list[bool]:
    return [
        place in found
        for one in batches
        for found in [noticed(as_card(one))]
        for place in range(len(one.rows))
    ]


def _share(name: str, results: Sequence[bool]) -> Measured:
    return Measured(name, "%", ((100 * sum(results) / len(results),),))


def _times(batches: Sequence[Batch]) -> tuple[float, ...]:
    found: list[float] = []
    for card in map(as_card, batches):
        began = time.perf_counter()
        marks_of(card)
        found.append(1_000 * (time.perf_counter() - began))
    return tuple(found)
