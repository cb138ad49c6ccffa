"""Cut the network between each two processes: requests run once, and continue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from keyturn.gateway.protocol.records import ItemState
from tests.apart.between import Act, Fate
from tests.apart.house import LONG_S, House, open_house
from tests.conftest import eventually
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
async def test_no_lost_message_loses_a_call(house: House) -> None:
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
async def test_a_cut_off_gateway_grants_a_claim_once(house: House) -> None:
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
async def test_a_reset_at_any_stage_loses_nothing(house: House) -> None:
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


LEASE_MS = 3000
CUT_MS = 3 * LEASE_MS


@pytest.fixture
async def brief(tmp_path: Path) -> AsyncGenerator[House]:
    """Give a house whose leases are short, so that a cut can outlive them."""
    async with open_house(tmp_path, lease_ms=LEASE_MS) as found:
        yield found


async def ends(brief: House, thread: str, state: ItemState) -> None:
    async def has_ended() -> bool:
        return await brief.states(thread) == [state]

    await eventually(has_ended, within_s=LONG_S)


async def is_later(brief: House, *, by_ms: int) -> None:
    """Wait until the store's clock is on by so much."""
    now_ms = brief.store.conn.now_ms
    until_ms = await now_ms("") + by_ms

    async def has_come() -> bool:
        return await now_ms("") >= until_ms

    await eventually(has_come, within_s=LONG_S)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "stage", sample(["running", "submit answered", "answers sent"], 1)
)
async def test_an_agent_cut_off_too_long_pays_once(brief: House, stage: str) -> None:
    thread, cut = stage.replace(" ", "-"), brief.cuts["agent-gateway"]
    brief.between.acts[thread, stage] = closes(brief)
    async with brief.people(thread):
        agent = await brief.start_agent(thread)

        async def is_decided() -> bool:
            found = await brief.states(thread)
            return bool(found) and ItemState.PENDING not in found

        await eventually(is_decided, within_s=LONG_S)
        await is_later(brief, by_ms=CUT_MS)
        if stage == "running":
            await ends(brief, thread, ItemState.IN_DOUBT)
        cut.open()
        assert await agent.ended() == 0, brief.said(thread)
        await brief.executed(thread)
    assert not brief.between.acts


@pytest.mark.timeout(900)
async def test_a_claim_answered_too_late_runs_nothing(brief: House) -> None:
    thread = "late"
    brief.between.acts[thread, "claim answered"] = closes(brief)
    async with brief.people(thread):
        agent = await brief.start_agent(thread)
        await ends(brief, thread, ItemState.IN_DOUBT)
        await is_later(brief, by_ms=CUT_MS)
        brief.cuts["agent-gateway"].open()

        async def has_asked_again() -> bool:
            return brief.between.met.count((thread, "claim answered")) > 1

        await eventually(has_asked_again, within_s=LONG_S)
    assert thread not in brief.between.effects
    await agent.kill()


def closes(brief: House) -> Act:
    async def act() -> Fate:
        brief.cuts["agent-gateway"].close()
        return Fate.PASSED

    return act
