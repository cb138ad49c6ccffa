"""What the processors of one machine allow at most, by what a click costs each process.

The load generator, the stand-in for Slack and the store work on the same processors as
the bots. So there is a rate that no bot can exceed, even one that costs nothing; it
follows from the processor time that the others were measured to take in the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from bench.load import LOAD

SLACK, STORE, BOT = "Slack", "store", "bot"
"""Who is watched, besides the load generator."""


@dataclass(frozen=True, slots=True)
class ClickCost:
    """Processor milliseconds of one click, by who worked."""

    load: float
    slack: float
    store: float
    bot: float

    @property
    def around(self) -> float:
        """Return what all but the bot cost."""
        return self.load + self.slack + self.store

    def __str__(self) -> str:
        """Return it in words."""
        return (
            f"bot {self.bot:.2f} ms, store {self.store:.2f}, Slack {self.slack:.2f}, "
            f"load {self.load:.2f}"
        )


def cost_of(rounds: Sequence[Mapping[str, float]]) -> ClickCost:
    """Return what a click costs, as the median of each over the rounds."""
    names = (LOAD, SLACK, STORE, BOT)
    return ClickCost(*(median(one[name] for one in rounds) for name in names))


def at_best(cost: ClickCost, *, bots: int, processors: int) -> float:
    """Return how many clicks a second such costs allow, if nobody ever waits.

    Args:
        cost: of a click.
        bots: how many processes answer; each is one processor's work at most.
        processors: of the machine.
    """
    everyone_ms = (cost.around + cost.bot) / processors
    # One after the other in each bot, and in the one thread of a store.
    longest_ms = max(everyone_ms, cost.store, cost.bot / bots)
    return 1000 / longest_ms if longest_ms else 0.0


def bounds(
    ours: ClickCost, bare: ClickCost, bolt: ClickCost, *, bots: int, processors: int
) -> str:
    """Return what bots could reach at best against one empty Bolt listener, in words.

    Both by processor time alone: how busy the machine was with something else changes
    little of it.

    Args:
        ours: what a click costs with Twokey.
        bare: what it costs with a process that does the least.
        bolt: what it costs with Bolt.
        bots: how many processes answer.
        processors: of the machine.
    """
    peer = at_best(bolt, bots=1, processors=processors)

    def against(bot_ms: float) -> str:
        cost = replace(ours, bot=bot_ms)
        rate = at_best(cost, bots=bots, processors=processors)
        return f"{rate / peer:.2f}" if peer else "?"

    return (
        f"a click costs: {ours}; of Bolt: {bolt}. By that alone, and {processors} "
        f"processors for everybody, bots that cost nothing would reach {against(0)}, "
        f"bots that cost what a bare process does ({bare.bot:.2f} ms) "
        f"{against(bare.bot)}, Twokey's {against(ours.bot)}"
    )
