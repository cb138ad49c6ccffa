"""Cut an agent off for longer than its leases live."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from keyturn.gateway.protocol.records import ItemState
from tests.apart.between import Act, Fate
from tests.apart.house import LONG_S, House, open_house
from tests.conftest import eventually
from tests.levels import sample

pytestmark = pytest.mark.slow

LEASE_MS = 3000
CUT_MS = 3 * LEASE_MS


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[House]:
    async with open_house(tmp_path, lease_ms=LEASE_MS) as found:
        yield found


async def ends(house: House, thread: str, state: ItemState) -> None:
    async def has_ended() -> bool:
        return await house.states(thread) == [state]

    await eventually(has_ended, within_s=LONG_S)


async def is_later(house: House, *, by_ms: int) -> None:
    """Wait until the store's clock is on by so much."""
    now_ms = house.store.conn.now_ms
    until_ms = await now_ms("") + by_ms

    async def has_come() -> bool:
        return await now_ms("") >= until_ms

    await eventually(has_come, within_s=LONG_S)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "stage", sample(["running", "submit answered", "answers sent"], 1)
)
async def test_an_agent_that_was_cut_off_past_its_lease_runs_its_call_once(
    house: House, stage: str
) -> None:
    thread, cut = stage.replace(" ", "-"), house.cuts["agent-gateway"]
    house.between.acts[thread, stage] = closes(house)
    async with house.people(thread):
        agent = await house.start_agent(thread)

        async def is_decided() -> bool:
            found = await house.states(thread)
            return bool(found) and ItemState.PENDING not in found

        await eventually(is_decided, within_s=LONG_S)
        await is_later(house, by_ms=CUT_MS)
        if stage == "running":
            await ends(house, thread, ItemState.IN_DOUBT)
        cut.open()
        assert await agent.ended() == 0, house.said(thread)
        await house.executed(thread)
    assert not house.between.acts


@pytest.mark.timeout(900)
async def test_a_claim_whose_answer_is_late_past_its_lease_runs_nothing(
    house: House,
) -> None:
    thread = "late"
    house.between.acts[thread, "claim answered"] = closes(house)
    async with house.people(thread):
        agent = await house.start_agent(thread)
        await ends(house, thread, ItemState.IN_DOUBT)
        await is_later(house, by_ms=CUT_MS)
        house.cuts["agent-gateway"].open()

        async def has_asked_again() -> bool:
            return house.between.met.count((thread, "claim answered")) > 1

        await eventually(has_asked_again, within_s=LONG_S)
    assert thread not in house.between.effects
    await agent.kill()


def closes(house: House) -> Act:
    async def act() -> Fate:
        house.cuts["agent-gateway"].close()
        return Fate.PASSED

    return act
