"""Cut the network between each two processes: requests run once, and continue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from tests.apart.between import Act, Fate
from tests.apart.house import House, open_house
from tests.levels import sample

pytestmark = pytest.mark.slow

ASKED = ("submit", "answers", "claim", "finish")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[House]:
    async with open_house(tmp_path) as found:
        yield found


def is_so(fate: Fate) -> Act:
    async def act() -> Fate:
        return fate

    return act


@pytest.mark.timeout(900)
async def test_no_message_between_agent_and_gateway_can_be_lost_for_good(
    house: House,
) -> None:
    for fate in (Fate.DROPPED, Fate.STALLED, Fate.HALF):
        stages = [f"{name} answered" for name in ASKED]
        if fate is not Fate.HALF:
            stages += [f"{name} sent" for name in ASKED]
        if fate is Fate.STALLED:
            # Each takes the agent's time limit.
            stages = sample(stages, 3)
        for stage in stages:
            house.between.acts[fate, stage] = is_so(fate)

        await house.runs_once(fate)

        assert not house.between.acts


@pytest.mark.timeout(900)
async def test_a_gateway_that_is_cut_off_from_the_store_grants_a_claim_once(
    house: House,
) -> None:
    thread, stage = "cut", "claim sent"

    async def heals() -> Fate:
        house.cuts["gateway-store"].open()
        return Fate.PASSED

    async def cuts() -> Fate:
        house.cuts["gateway-store"].close()
        # When the agent asks again.
        house.between.acts[thread, stage] = heals
        return Fate.PASSED

    house.between.acts[thread, stage] = cuts
    await house.runs_once(thread)
    assert not house.between.acts


@pytest.mark.timeout(900)
async def test_connections_that_are_reset_at_every_stage_lose_nothing(
    house: House,
) -> None:
    for name, cut in house.cuts.items():
        for stage in (
            f"{one} {when}" for one in ASKED for when in ("sent", "answered")
        ):

            async def act(reset: Callable[[], None] = cut.reset) -> Fate:
                reset()
                return Fate.PASSED

            house.between.acts[name, stage] = act
        await house.runs_once(name)
        assert not house.between.acts
