"""Kill each of the three processes at every stage: nothing twice, lost or unasked."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.keys import LEASE_MS
from tests.apart.between import Fate
from tests.apart.house import LONG_S, House, open_house
from tests.conftest import eventually
from tests.levels import sample

pytestmark = pytest.mark.slow

STAGES = (
    *("submit sent", "submit answered", "answers sent", "answers answered"),
    *("claim sent", "claim answered", "running", "finish sent", "finish answered"),
)
IN_DOUBT = {"claim answered": 0, "running": 1, "finish sent": 1}
"""Where nobody can know whether a killed agent paid, and how often it did."""


@pytest.fixture
async def house(tmp_path: Path, victim: str) -> AsyncGenerator[House]:
    # Long enough for a machine that is busy, and not longer than the test can wait.
    lease_ms = 4000 if victim == "agent" else LEASE_MS
    async with open_house(tmp_path, lease_ms=lease_ms) as found:
        yield found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["gateway", "bot", "agent"])
async def test_a_kill_at_any_moment_runs_it_once(house: House, victim: str) -> None:
    for stage in sample(STAGES, 3):
        thread = f"{victim}-{stage.replace(' ', '-')}"
        # The gateway's death loses its current requests and answers.
        is_lost = victim == "gateway" and stage != "running"
        fate = Fate.DROPPED if is_lost else Fate.PASSED
        house.between.acts[thread, stage] = house.kills(victim, fate)
        if victim == "agent":
            async with house.people(thread):
                await ends_after_the_agent_was_killed(house, thread, stage)
        else:
            await house.runs_once(thread)

        assert (thread, stage) in house.between.met


async def ends_after_the_agent_was_killed(
    house: House, thread: str, stage: str
) -> None:
    first = await house.start_agent(thread)
    assert await first.ended() != 0
    second = await house.start_agent(thread)
    if stage not in IN_DOUBT:
        assert await second.ended() == 0, (thread, house.said(thread))
        await house.executed(thread)
        return

    async def is_in_doubt() -> bool:
        return ItemState.IN_DOUBT in await house.states(thread)

    await eventually(is_in_doubt, within_s=LONG_S)
    await second.kill()
    assert len(house.between.effects.get(thread, [])) == IN_DOUBT[stage]
