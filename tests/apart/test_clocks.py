"""Move the clock of one process by two hours: the store decides what time it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from keyturn.gateway.config import SlackMode
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.service.report.process_check import process_problems
from tests.apart.between import Act, Fate
from tests.apart.house import LONG_S, House, open_house
from tests.conftest import eventually
from tests.levels import sample

pytestmark = pytest.mark.slow

TWO_HOURS = 7200
AHEAD_FIRST = sample((TWO_HOURS, -TWO_HOURS), 1)
BEHIND_FIRST = sample((-TWO_HOURS, TWO_HOURS), 1)
"""Both ways in a deep run, else the first one."""
STAGES = ("submit answered", "claim sent", "running")


@pytest.fixture
async def house(tmp_path: Path, victim: str) -> AsyncGenerator[House]:
    async with open_house(
        tmp_path,
        # By HTTP: what Slack signs is then compared with a clock.
        mode=SlackMode.HTTP,
        moved=[victim],
    ) as found:
        yield found


def moves(house: House, victim: str, ahead_s: int) -> Act:
    async def act() -> Fate:
        house.clocks[victim].move(ahead_s)
        return Fate.PASSED

    return act


async def is_ready(house: House, name: str) -> tuple[bool, str]:
    async with httpx.AsyncClient() as client:
        reply = await client.get(f"{house.urls[name]}/readyz", timeout=LONG_S)
    return reply.status_code == 200, reply.text


def side(ahead_s: int) -> str:
    return "ahead of" if ahead_s > 0 else "behind"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", sample(["bot", "gateway", "agent"], 1))
async def test_with_any_clock_a_call_runs_once(house: House, victim: str) -> None:
    ways = BEHIND_FIRST if victim == "bot" else AHEAD_FIRST
    for number, ahead_s in enumerate(ways, start=1):
        for stage in sample(STAGES, 1):
            house.clocks[victim].move(0)
            thread = f"{victim}{ahead_s:+d}-{stage.replace(' ', '-')}"
            house.between.acts[thread, stage] = moves(house, victim, ahead_s)
            await house.runs_once(thread)
            assert not house.between.acts
        await is_told(house, victim, ahead_s, times=number)
    house.clocks[victim].move(0)
    if victim != "agent":
        await is_right(house, victim)


async def is_told(house: House, victim: str, ahead_s: int, *, times: int) -> None:
    """Check that operators see the wrong clock in every view."""
    keys = house.store.keys_of_tenant("default")

    async def is_event() -> bool:
        names = [
            one.data["name"]
            async for one in security_events(house.store, "default")
            if one.reason == "clock_wrong"
        ]
        return len({*names}) == 1 and len(names) == times

    await eventually(is_event, within_s=LONG_S)
    if victim == "agent":
        # It reports this itself, too.
        thread = house.between.thread
        sign = "+" if ahead_s > 0 else "-"
        assert f"clock_differs ahead_s={sign}" in house.said(thread)
        return
    house.clocks[victim].move(ahead_s)
    is_good, text = await is_ready(house, victim)
    assert not is_good
    assert f"s {side(ahead_s)} the store's; set it by NTP" in text

    async def is_known_to_others() -> bool:
        told = await process_problems(house.store, keys)
        return any(f"the {victim} " in one and side(ahead_s) in one for one in told)

    await eventually(is_known_to_others, within_s=LONG_S)


async def is_right(house: House, victim: str) -> None:
    """Check that no view mentions a clock that was corrected."""
    keys = house.store.keys_of_tenant("default")
    assert (await is_ready(house, victim))[0]

    async def is_forgotten() -> bool:
        return not await process_problems(house.store, keys)

    await eventually(is_forgotten, within_s=LONG_S)
