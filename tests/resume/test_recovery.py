"""What one side lost is found from the other, ended with an answer, and told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.house import House, open_house
from twokey.gateway.approvals.events import EventName
from twokey.gateway.approvals.recovering import THREAD_LOST
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.resume import recovery
from twokey.gateway.resume.recovery import Recovery
from twokey.gateway.resume.runner import ThreadState
from twokey.gateway.resume.runners import Runners
from twokey.gateway.store.store import Store

REFUND = ("refund", {"order": "78291", "amount": 899.0})


def looking(house: House) -> Recovery:
    """Return what looks at both sides."""
    return Recovery(house.store, Runners(house.runners, house.saver))


def forget_checkpoints(folder: Path) -> None:
    """Delete the file of the checkpoints."""
    for file in folder.glob("checkpoints.sqlite*"):
        file.unlink()


async def problems(house: House) -> list[str]:
    """Return what a look finds, without changing anything."""
    return [gap.problem for gap in (await looking(house).compare()).gaps]


async def waits(house: House, thread: str = "t1") -> None:
    """Let a thread rest on the question about a refund."""
    async with house.working():
        await house.ask(REFUND, thread=thread)
        await house.asked(thread=thread)
        await house.idle()


async def all_ended(house: House) -> bool:
    """Say whether nothing waits in the store any more."""
    return not await house.store.approvals.scheduled(house.keys)


async def test_a_thread_whose_record_is_lost_is_told_so_and_ends(
    house: House,
) -> None:
    await waits(house)
    await house.store.conn.command("FLUSHALL")

    assert await problems(house) == [recovery.RECORD_LOST]
    async with house.working():
        told = await house.words()

    assert "has no record of this call" in told
    assert "Look before you ask again whether it ran before." in told
    assert sample_tools.ledger() == []
    assert await problems(house) == []


async def test_an_approved_call_whose_thread_is_gone_ends_at_the_next_start(
    store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "checkpoints.sqlite"
    async with open_house(store, file) as house:
        await waits(house)
        await waits(house, "t2")
        [item] = await house.items()
        await house.decide(item)
    forget_checkpoints(tmp_path)

    # As ten minutes later: nobody used other checkpoints in the meantime.
    await store.conn.command("DEL", house.keys.marks("default"))
    async with open_house(store, file) as house:
        assert await problems(house) == [recovery.THREAD_GONE] * 2
        async with house.working():
            await eventually(lambda: all_ended(house))

            assert await house.states() == [ItemState.LAPSED]
            assert await house.states("t2") == [ItemState.WITHDRAWN]
        [lapsed] = await house.events(EventName.ITEM_LAPSED)
        assert (lapsed.reason, lapsed.actor) == (THREAD_LOST, "twokey")
        assert await house.events(EventName.ITEM_WITHDRAWN, "t2")
        assert await problems(house) == []
    assert sample_tools.ledger() == []


async def test_a_thread_of_older_checkpoints_goes_on_with_what_was_decided(
    store: Store, tmp_path: Path
) -> None:
    file, copy = tmp_path / "checkpoints.sqlite", tmp_path / "copy"
    async with open_house(store, file) as house:
        await waits(house)
    copy.write_bytes(file.read_bytes())
    async with open_house(store, file) as house, house.working():
        [item] = await house.items()
        await house.decide(item)
        ran = await house.words()
    forget_checkpoints(tmp_path)
    copy.rename(file)

    async with open_house(store, file) as house:
        assert await problems(house) == [recovery.DECIDED]
        async with house.working():
            assert await house.words(2) == ran

    assert len(sample_tools.ledger()) == 1


async def test_what_waits_as_it_should_is_left_alone(house: House) -> None:
    await waits(house)

    found = await looking(house).compare()

    assert (found.gaps, found.unserved, found.is_whole) == ((), 0, True)


async def test_a_call_that_its_thread_forgot_is_found(house: House) -> None:
    await waits(house)
    await house.runner.delete("t1")
    await house.runner.start("t1", "hello", key="k")

    assert await problems(house) == [recovery.THREAD_ENDED]
    async with house.working():
        await eventually(lambda: all_ended(house))

    assert await house.states() == [ItemState.WITHDRAWN]


async def test_threads_of_agents_that_run_elsewhere_are_counted_and_left(
    house: House,
) -> None:
    await waits(house)
    await house.store.conn.command("FLUSHALL")
    house.runners = {"other": house.runner}

    found = await looking(house).look(is_alone=True)

    assert (found.gaps, found.unserved) == ((), 1)
    assert await house.store.queue(house.keys).depth() == 0


async def test_an_error_about_one_thread_keeps_no_other_from_being_found(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await waits(house, "t1")
    await waits(house, "t2")
    for thread in ("t1", "t2"):
        await house.runner.delete(thread)
    probe = house.runner.probe

    async def probed(thread: str) -> ThreadState:
        if thread == "t1":
            raise OSError("the disk")
        return await probe(thread)

    monkeypatch.setattr(house.runner, "probe", probed)

    gaps = (await looking(house).compare()).gaps

    assert [gap.thread for gap in gaps] == ["t2"]
