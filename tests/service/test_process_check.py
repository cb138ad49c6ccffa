"""Processes on one store fit together, or are refused in a sentence."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from keyturn.gateway.approvals.events import SecurityKind
from keyturn.gateway.clock import ReferenceClock
from keyturn.gateway.embed import gateway_process
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.service.report.process_check import (
    process_problems,
    registered,
    unserved,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.runs.processes import AgentCheckpoints, ProcessInfo
from keyturn.gateway.store.store import Store
from tests.conftest import eventually

LIFE_MS = 400
"""Short, so that a process which shows no sign of life is soon forgotten."""


@pytest.fixture(autouse=True)
def short_lives(store: Store) -> None:
    store.processes.life_ms = LIFE_MS


def gateway(
    checkpoints: str = "one", *, file: str = "", agent: str = "shop", tenant: str = "t"
) -> ProcessInfo:
    return ProcessInfo(
        role="gateway",
        where=f"host-{checkpoints}:1",
        tenant=tenant,
        serves=(agent,),
        checkpoints=checkpoints,
        file=file,
        shown=f"database {checkpoints}",
    )


def bot(seals: str, *more: str) -> ProcessInfo:
    return ProcessInfo(
        role="bot", where=f"{seals}:1", tenant="t", seals=seals, accepts=(seals, *more)
    )


async def let_wait(store: Store, agent: str, calls: int) -> None:
    """Open pending calls of an agent."""
    key = store.keys_of_tenant("t").waiting(agent)
    for number in range(calls):
        await store.conn.command("ZADD", key, 10**15, f"item{number}")
    await store.conn.command("PEXPIRE", key, 60_000)


async def test_a_gateway_with_another_database_is_refused(store: Store) -> None:
    keys = store.keys_of_tenant("t")
    async with registered(store, gateway("one")):
        with pytest.raises(SettingsError, match="in database one, and this one would"):
            async with registered(store, gateway("two")):
                pass

        [sentence] = await process_problems(store, keys)
        assert "host-two:1 was refused" in sentence
        assert "'checkpoints'" in sentence
        async with registered(store, gateway("one")), registered(store, gateway("one")):
            pass


async def test_a_process_whose_clock_is_set_wrong_says_so_until_it_is_right(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    keys, set_by = store.keys_of_tenant("t"), [0.0]
    store.conn.clock = ReferenceClock(
        wall_s=lambda: time.time() + set_by[0]  # noqa: TID251 - what a test moves
    )
    async with registered(store, gateway("one")) as registration:
        assert registration.problems == []
        set_by[0] = 7200.0
        [problem] = registration.problems
        assert problem.endswith("s ahead of the store's; set it by NTP.")

        async def is_told() -> bool:
            told = await process_problems(store, keys)
            return any("gateway host-one:1" in one and "ahead" in one for one in told)

        await eventually(is_told)
        set_by[0] = 0.0

        async def is_right() -> bool:
            return not await process_problems(store, keys)

        await eventually(is_right)

    assert store.security.counts[SecurityKind.CLOCK_WRONG] == 1
    assert caplog.text.count("process.clock_wrong") == 1
    [found] = [one async for one in security_events(store, "t")]
    assert (found.reason, found.data["name"]) == ("clock_wrong", "gateway host-one:1")


async def test_a_store_with_an_unknown_secret_is_told_while_it_is_so(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Replaced, or written by an attacker who wants to hide forgeries."""
    marked = Keys("t").sealed_by
    async with registered(store, gateway("one")) as registration:
        for mark, problems in (("another", 1), (None, 0), ("another", 1)):
            await store.conn.command("DEL", marked)
            if mark:
                await store.conn.command("SET", marked, mark)

            async def is_told(problems: int = problems) -> bool:
                return len(registration.problems) == problems

            await eventually(is_told)
        assert "if not, see who else writes to the store" in registration.problems[0]
    assert store.security.counts == {SecurityKind.SECRET_UNKNOWN: 1}
    [found] = [one async for one in security_events(store, "t")]
    assert (found.reason, found.data["name"]) == (
        "secret_unknown",
        "gateway host-one:1",
    )
    assert caplog.text.count("process.secret_unknown") == 2


@pytest.mark.parametrize(
    "other",
    [gateway("two", agent="billing"), gateway("two", tenant="other"), bot("k1")],
    ids=["another agent", "another tenant", "a bot"],
)
async def test_unshared_threads_live_anywhere(store: Store, other: ProcessInfo) -> None:
    async with registered(store, gateway("one")), registered(store, other):
        each = [
            name
            for tenant in ("t", "other")
            for name in (await store.processes.read(store.keys_of_tenant(tenant))).alive
        ]
        assert len(each) == 2


async def test_one_of_two_that_do_not_fit_starts(store: Store) -> None:
    may_end = asyncio.Event()
    started: list[str] = []

    async def run(process: ProcessInfo) -> None:
        async with registered(store, process):
            started.append(process.where)
            await may_end.wait()

    runs = [asyncio.create_task(run(gateway(f"d{number}"))) for number in range(4)]

    await eventually(lambda: sum(one.done() for one in runs) == len(runs) - 1)
    may_end.set()
    ends = await asyncio.gather(*runs, return_exceptions=True)
    assert len(started) == 1
    assert sum(isinstance(one, SettingsError) for one in ends) == len(runs) - 1


async def test_a_lost_database_is_refused_while_calls_wait(store: Store) -> None:
    keys = store.keys_of_tenant("t")
    async with registered(store, gateway("one")):
        pass
    await let_wait(store, "shop", 3)

    with pytest.raises(SettingsError, match=r"3 calls of agent 'shop'.*database one"):
        async with registered(store, gateway("two")):
            pass

    kept = AgentCheckpoints(
        tenant="t", agent="shop", checkpoints="two", shown="database two"
    )
    await store.processes.keep(keys, (kept,))
    async with registered(store, gateway("two")):
        pass


async def test_a_new_database_is_taken_when_nothing_waits(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for place in ("one", "two"):
        async with registered(store, gateway(place)):
            pass
    await let_wait(store, "shop", 1)

    with pytest.raises(SettingsError, match="database two"):
        async with registered(store, gateway("one")):
            pass


async def test_two_live_copies_of_one_file_are_refused(store: Store) -> None:
    async with registered(store, gateway(file="a")):
        with pytest.raises(SettingsError, match="are a copy of"):
            async with registered(store, gateway(file="b", agent="other")):
                pass
    async with registered(store, gateway(file="b")):
        pass  # a backup that was restored


async def test_bots_with_different_keys_do_not_run_together(store: Store) -> None:
    async with registered(store, bot("new", "old")):
        for other in (bot("old"), bot("foreign"), bot("foreign", "new")):
            with pytest.raises(SettingsError, match="KEYTURN_SECRET"):
                async with registered(store, other):
                    pass
        async with registered(store, bot("old", "new")):
            pass  # one that is rotated next


async def test_a_stopped_gateway_sees_that_it_does_not_fit(store: Store) -> None:
    keys = store.keys_of_tenant("t")
    async with registered(store, bot("old")) as place:
        assert not place.problem
        revision = (await store.processes.read(keys)).revision
        await store.processes.join(keys, "other", bot("new"), seen=revision)

        await eventually(lambda: "KEYTURN_SECRET" in place.problem)


async def test_an_agent_that_nobody_serves_is_named_while_its_calls_wait(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    keys = store.keys_of_tenant("t")
    async with registered(store, gateway(agent="billing")):
        await let_wait(store, "billing", 3)
        assert await unserved(store, keys) == []

    async with registered(store, gateway(agent="accounts")):
        [sentence] = await unserved(store, keys)

    assert sentence.startswith("3 calls of agent 'billing' of tenant 't' wait")
    assert "agent.unserved" in caplog.text


async def test_the_database_has_the_identity(tmp_path: Path, store: Store) -> None:
    async def process(name: str) -> ProcessInfo:
        place = str(tmp_path / name)
        async with open_checkpoints(place) as saver:
            return await gateway_process(saver, place, tenant="t", serves=("shop",))

    first, again, other = [await process(name) for name in ("a", "a", "b")]
    await asyncio.to_thread((tmp_path / "a").rename, tmp_path / "moved")
    moved = await process("moved")

    assert first == again
    assert (moved.checkpoints, moved.file) == (first.checkpoints, first.file)
    assert first.checkpoints != other.checkpoints
    async with registered(store, first):
        pass
