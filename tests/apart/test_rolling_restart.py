"""Restart the three processes in any order under a load: each call runs once."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from itertools import permutations
from pathlib import Path

import httpx
import pytest

from keyturn.gateway.protocol.records import ItemState
from tests.apart.between import EFFECT
from tests.apart.house import LONG_S, OVER, House, Member, open_house
from tests.conftest import eventually
from tests.levels import size

pytestmark = pytest.mark.slow

# A channel takes one card a second, so each call more takes as long. Some are left
# for after the last restart.
THREADS = [f"t{number}" for number in range(size(deep=10, short=4))]
TIMES = size(deep=4, short=3)
AT_LEAST = size(deep=4, short=2)
"""Calls that have to run before the next process is restarted."""
NAMES, ORDERS = ("gateway", "bot", "agent"), size(deep=6, short=1)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[House]:
    async with open_house(tmp_path) as found:
        yield found


@pytest.mark.timeout(900)
async def test_every_call_runs_once_whoever_is_restarted_and_in_any_order(
    house: House,
) -> None:
    house.members["agent"] = agent = load(house)
    async with house.people(*THREADS):
        await agent.start()
        # An agent that is still being imported ends by the signal itself.
        await goes_on(house)
        # All six take minutes; pytest-randomly draws others for each run.
        for order in random.sample([*permutations(NAMES)], ORDERS):
            for name in order:
                await restarted(house, name)
                await goes_on(house)
        assert await agent.ended() == 0, agent.log.read_text("utf-8")

    for thread in THREADS:
        effects = house.between.effects[thread]
        assert [one["amount"] for one in effects] == list(range(1, TIMES + 1)), thread
        assert len({one["key"] for one in effects}) == TIMES, thread
        found = [one.state for one in await house.items(thread)]
        assert found.count(ItemState.EXECUTED) == TIMES, (thread, found)
        assert {*found} <= {ItemState.EXECUTED, *OVER}, (thread, found)
        assert f"{thread} {TIMES} calls were answered" in agent.log.read_text("utf-8")


def load(house: House) -> Member:
    env = {k: v for k, v in house.env.items() if not k.startswith("KEYTURN_")}
    env |= {"KEYTURN_GATEWAY": house.between.url, "KEYTURN_API_KEY": house.key}
    checkpoints = str(house.folder / "load.sqlite")
    words = (checkpoints, f"{house.between.url}{EFFECT}", str(TIMES), *THREADS)
    return Member(("tests.apart.load_process", *words), env, house.folder / "load.log")


async def restarted(house: House, name: str) -> None:
    """Stop a process as a supervisor does, start it, and wait until it is ready."""
    member = house.members[name]
    code = await member.stop()
    assert code == 0, (name, code, member.log.read_text("utf-8")[-2000:])
    await member.start()
    if name == "agent":
        return

    async def is_ready() -> bool:
        try:
            async with httpx.AsyncClient(timeout=LONG_S) as client:
                reply = await client.get(f"{house.urls[name]}/readyz")
        except httpx.HTTPError:
            return False
        return reply.status_code == 200

    await eventually(is_ready, within_s=LONG_S)


def count(house: House) -> int:
    return sum(map(len, house.between.effects.values()))


async def goes_on(house: House) -> None:
    """Wait until some more calls have run, or all of them."""
    until = min(count(house) + AT_LEAST, len(THREADS) * TIMES)

    async def has_gone_on() -> bool:
        return count(house) >= until

    await eventually(has_gone_on, within_s=LONG_S)
