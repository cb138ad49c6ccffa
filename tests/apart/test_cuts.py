"""Cut the network between each two processes: requests run once, and continue."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from keyturn.cli.demo_scripts import approve, edit
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.keys import LEASE_MS
from tests.apart.between import Act, Fate
from tests.apart.house import LONG_S, House, open_house
from tests.apart.three_processes import ROOT, play_apart
from tests.conftest import eventually
from tests.forked import Forked
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


SHORT_LEASE_MS = 3000
CUT_MS = 3 * SHORT_LEASE_MS


@pytest.fixture
async def brief(tmp_path: Path) -> AsyncGenerator[House]:
    """Give a house whose leases are short, so that a cut can outlive them."""
    async with open_house(tmp_path, lease_ms=SHORT_LEASE_MS) as found:
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


# Kill each of the three processes at every stage: nothing twice, lost or unasked.


STAGES = (
    *("submit sent", "submit answered", "answers sent", "answers answered"),
    *("claim sent", "claim answered", "running", "finish sent", "finish answered"),
)
IN_DOUBT = {"claim answered": 0, "running": 1, "finish sent": 1}
"""Where nobody can know whether a killed agent paid, and how often it did."""


@pytest.fixture
async def killed_house(tmp_path: Path, victim: str) -> AsyncGenerator[House]:
    # Long enough for a machine that is busy, and not longer than the test can wait.
    lease_ms = 4000 if victim == "agent" else LEASE_MS
    async with open_house(tmp_path, lease_ms=lease_ms) as found:
        yield found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["gateway", "bot", "agent"])
async def test_a_kill_at_any_moment_runs_it_once(
    killed_house: House, victim: str
) -> None:
    for stage in sample(STAGES, 3):
        thread = f"{victim}-{stage.replace(' ', '-')}"
        # The gateway's death loses its current requests and answers.
        is_lost = victim == "gateway" and stage != "running"
        fate = Fate.DROPPED if is_lost else Fate.PASSED
        killed_house.between.acts[thread, stage] = killed_house.kills(victim, fate)
        if victim == "agent":
            async with killed_house.people(thread):
                await ends_after_the_agent_was_killed(killed_house, thread, stage)
        else:
            await killed_house.runs_once(thread)

        assert (thread, stage) in killed_house.between.met


async def ends_after_the_agent_was_killed(
    killed_house: House, thread: str, stage: str
) -> None:
    first = await killed_house.start_agent(thread)
    assert await first.ended() != 0
    second = await killed_house.start_agent(thread)
    if stage not in IN_DOUBT:
        assert await second.ended() == 0, (thread, killed_house.said(thread))
        await killed_house.executed(thread)
        return

    async def is_in_doubt() -> bool:
        return ItemState.IN_DOUBT in await killed_house.states(thread)

    await eventually(is_in_doubt, within_s=LONG_S)
    await second.kill()
    assert len(killed_house.between.effects.get(thread, [])) == IN_DOUBT[stage]


# Gateway, bot and agent in three processes end as one process does.


def played(script: str) -> list[dict[str, Any]]:
    """Return the events of a script of the demo."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = Forked("keyturn", "demo", "--script", script, "--json", cwd=ROOT, env=env)
    shown = run.stdout.read()
    assert run.wait() == 0, shown
    return [json.loads(line) for line in shown.splitlines()]


def told(events: list[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    """Return the parts that are equal in every run."""
    return [
        (one["event"], one.get("action"), one.get("errors"))
        for one in events
        if not one["event"].startswith("script.")
    ]


async def test_three_processes_end_as_one_does(tmp_path: Path) -> None:
    apart = list[dict[str, Any]]()

    def say(event: str, **fields: object) -> None:
        apart.append({"event": event, **fields})

    scripts = sample((edit, approve), 1)
    await play_apart(tmp_path, say, scripts)

    alone = [one for script in scripts for one in told(played(script.__name__))]
    assert told(apart) == alone
