"""Run people and faults for a while, then quiet, and evaluate the result."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import oracle, stack
from tests.chaos.faults import Chaos
from tests.chaos.oracle import Verdict
from tests.chaos.people import People

_START_S = 120.0
"""How long the first call may take: a machine with much else to do starts slowly."""


@dataclass(frozen=True)
class Plan:
    """Duration, intensity and seed of a run.

    Attributes:
        seconds: how long people ask and faults happen.
        seed: of all dice. The speed of the processes is not in it, so the same seed
            causes the same faults at the same times, not at the same instructions.
        ask_s: average time between two messages to the agent.
        fault_s: average time between two faults.
        undecided_s: time at the end without decisions, so that cards are due.
    """

    seconds: float
    seed: int
    ask_s: float = 2.0
    fault_s: float = 1.2
    undecided_s: float = 4.0

    @property
    def command(self) -> str:
        """Return how to do the same again."""
        return f"python -m tests.chaos --seconds {self.seconds:g} --seed {self.seed}"


async def run(plan: Plan, folder: Path, say: Callable[[str], object]) -> Verdict:
    """Execute a plan in a folder; return the findings."""
    say(f"Again: {plan.command}")
    async with stack.running(folder) as everything:
        people = People(everything, random.Random(f"people {plan.seed}"))  # noqa: S311 - no secret
        chaos = Chaos(everything, random.Random(f"faults {plan.seed}"))  # noqa: S311 - no secret
        deciding = asyncio.create_task(people.decide_forever())
        asking = asyncio.create_task(_ask(people, plan))
        # Something has to be under way when the first fault comes.
        await _first_effect(everything)
        deciding_s = max(0.0, plan.seconds - plan.undecided_s)
        asyncio.get_running_loop().call_later(deciding_s, deciding.cancel)
        await chaos.rage(plan.seconds, pause_s=plan.fault_s)
        for task in (asking, deciding):
            task.cancel()
        results = await asyncio.gather(asking, deciding, return_exceptions=True)
        everything.heal()
        for line in chaos.done:
            say(line)
        say(f"faults: {dict(chaos.counts)}")
        wrong = [repr(one) for one in results if isinstance(one, Exception)]
        wrong += everything.ended()
        wrong += await oracle.wait_for_cards(people)
        undecided = len(await oracle.open_approvals(people))
        wrong += await oracle.wait_for_ends(everything, people)
        found = await oracle.verdict(everything, people)
    counts = {**found.counts, "undecided in quiet": undecided}
    return Verdict([*wrong, *found.wrong], counts)


async def _ask(people: People, plan: Plan) -> None:
    while True:
        await people.ask()
        await asyncio.sleep(people.dice.uniform(0.5, 1.5) * plan.ask_s)


async def _first_effect(everything: stack.Stack) -> None:
    async with asyncio.timeout(_START_S):
        while not everything.effects.exists():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)
