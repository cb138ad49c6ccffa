"""Move the clock of one process by two hours: the store decides what time it is."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import timedelta
from itertools import count
from pathlib import Path

import httpx
import pytest

from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.config import SlackMode
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.service.report.process_check import process_problems
from keyturn.gateway.trust.key_folder import Keyring, Role
from tests.apart.agent_process import AGENT, RECEIPT_KEYS, TOOL
from tests.apart.between import Act, Fate
from tests.apart.house import LONG_S, POLICY, House, open_house
from tests.apart.test_kills import executed, said
from tests.bot.signed import signed_headers
from tests.conftest import eventually
from tests.levels import sample

pytestmark = pytest.mark.slow

TWO_HOURS = 7200
AHEAD_FIRST = sample((TWO_HOURS, -TWO_HOURS), 1)
BEHIND_FIRST = sample((-TWO_HOURS, TWO_HOURS), 1)
"""Both ways in a deep run, else the first one."""
STAGES = ("submit answered", "claim sent", "running")


SOON, POLICY_OF_BOTH = (
    "pay_soon",
    {
        **POLICY,
        "tools": {
            TOOL: {"tier": "approve", "expires_in": "1h"},
            "pay_soon": {"tier": "approve", "expires_in": "4s"},
        },
    },
)


@pytest.fixture
def victim() -> str:
    return ""


@pytest.fixture
async def house(tmp_path: Path, victim: str) -> AsyncGenerator[House]:
    async with open_house(
        tmp_path,
        policy=POLICY_OF_BOTH,
        # By HTTP: what Slack signs is then compared with a clock.
        mode=SlackMode.HTTP,
        moved=[victim] if victim else ["gateway", "bot", "agent"],
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
@pytest.mark.parametrize("victim", ["gateway", "bot", "agent"])
async def test_whosever_clock_is_moved_and_whenever_the_call_runs_once(
    house: House, victim: str
) -> None:
    ways = BEHIND_FIRST if victim == "bot" else AHEAD_FIRST
    for number, ahead_s in enumerate(ways, start=1):
        for stage in sample(STAGES, 1):
            house.clocks[victim].move(0)
            thread = f"{victim}{ahead_s:+d}-{stage.replace(' ', '-')}"
            house.between.acts[thread, stage] = moves(house, victim, ahead_s)
            async with house.people(thread):
                agent = await house.start_agent(thread)
                assert await agent.ended() == 0, (thread, said(house, thread))
                await executed(house, thread)
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
        assert f"clock_differs ahead_s={sign}" in said(house, thread)
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


async def wrong_clocks_do_not_start(house: House) -> None:
    """Check that gateway and bot name a wrong clock at their start, and end."""
    for name in ("gateway", "bot"):
        member = house.members[name]
        for ahead_s in BEHIND_FIRST:
            await member.kill()
            house.clocks[name].move(ahead_s)
            await member.start()
            assert await member.ended() != 0
            log = member.log.read_text(encoding="utf-8")
            sign = "-" if ahead_s > 0 else "+"
            found = rf"The server's clock is {re.escape(sign)}7\d+\.\d s from this"
            assert len(re.findall(found, log)) == 1
            assert "switch on NTP on both" in log


def turn(tool: str, name: str) -> Turn:
    call = ProposedCall(tool_call_id="c1", tool=tool, args={"amount": 9})
    ref = TurnRef(agent=AGENT, thread=f"{tool}-{name}", message_id="m1")
    return Turn(ref=ref, calls=(call,))


@pytest.mark.timeout(900)
async def test_calls_keys_and_requests_end_by_the_clock_of_the_store(
    house: House,
) -> None:
    # In one house: its processes take seconds to start. The last check ends them.
    for check in (
        calls_and_keys_end,
        old_requests_stay_old,
        receipts_wait,
        wrong_clocks_do_not_start,
    ):
        await check(house)
        for clock in house.clocks.values():
            clock.move(0)


async def calls_and_keys_end(house: House) -> None:
    """Check that calls and keys end while gateway and bot have wrong clocks."""
    gateway = HttpGateway(house.between.url, house.key)
    for ahead_s in AHEAD_FIRST:
        ends = await house.new_key(timedelta(seconds=4))
        for name in ("gateway", "bot"):
            house.clocks[name].move(ahead_s)
        for tool in (TOOL, SOON):
            await gateway.submit(turn(tool, str(ahead_s)))
        [soon] = await house.approvals(f"{SOON}-{ahead_s}")

        async def has_ended(soon: Approval = soon, ahead_s: int = ahead_s) -> bool:
            now_ms = await house.store.conn.now_ms("")
            [item] = await house.items(f"{SOON}-{ahead_s}")
            assert item.state in {ItemState.PENDING, ItemState.EXPIRED}
            if item.state is ItemState.PENDING:
                return False
            # Read after the time, so that it is not later than the end.
            assert now_ms >= soon.expires_at_ms - 1000
            return True

        await eventually(has_ended, within_s=LONG_S)
        [item] = await house.items(f"{TOOL}-{ahead_s}")
        assert item.state is ItemState.PENDING

        async def is_refused(key: str = ends) -> bool:
            return (await asked(house, key)).status_code == 401

        assert (await asked(house, house.key)).status_code == 200
        await eventually(is_refused, within_s=LONG_S)
    await gateway.aclose()


async def asked(house: House, key: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers) as client:
        return await client.get(f"{house.urls['gateway']}/v1/approvals")


async def old_requests_stay_old(house: House) -> None:
    """Check that no old request of Slack is new by a clock that goes wrong."""
    # Not a handled request; a separate request each time.
    secret, bodies = house.sandbox.signing_secret, (b"a=%d" % n for n in count())
    url = f"{house.urls['bot']}/slack/events"
    now_s = await house.store.conn.now_ms("") // 1000
    async with httpx.AsyncClient() as client:
        for ahead_s in (TWO_HOURS, -TWO_HOURS):
            house.clocks["bot"].move(ahead_s)
            for at_s in (now_s + ahead_s, now_s):
                body = next(bodies)
                headers = signed_headers(secret, body, timestamp=str(at_s))
                reply = await client.post(url, content=body, headers=headers)
                is_refused = reply.status_code == 401
                assert is_refused is (at_s != now_s), (ahead_s, reply.text)
    log = house.members["bot"].log.read_text(encoding="utf-8")
    assert "why=timestamp_outside_window age_s=" in log


async def receipts_wait(house: House) -> None:
    """Check that an agent that verifies receipts waits for its clock to be right."""
    keyring = Keyring.of(house.settings)
    keys = "\n".join(one.text for one in keyring.verifying(Role.GATEWAY))
    for ahead_s in BEHIND_FIRST:
        house.clocks["agent"].move(ahead_s)
        thread = f"receipts{ahead_s:+d}"
        async with house.people(thread):
            agent = await house.start_agent(thread, **{RECEIPT_KEYS: keys})
            await agent.says("error=ClockWrong")
            assert not house.between.effects.get(thread)
            house.clocks["agent"].move(0)
            assert await agent.ended() == 0, said(house, thread)
            await executed(house, thread)
