"""What pending approvals take can be measured, here and as it was before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from bench import pending, record_size, restart_pending, submit_history
from keyturn.gateway.store.open_store import open_store


def test_the_arguments_have_the_size_that_is_told() -> None:
    for number in (0, 1, 9_999):
        text = json.dumps(pending.arguments(number), separators=(",", ":"))
        assert len(text) == pending.ARGS_BYTES


@pytest.mark.timeout(60)
async def test_memory_is_counted_by_kind_of_key() -> None:
    figure = await record_size.measured(5)

    ours, *kinds = figure.measured
    assert 500 < ours.at(0.5) < 10_000
    assert {"of it a", "of it p", "of it tm"} <= {one.name for one in kinds}


@pytest.mark.timeout(60)
async def test_a_submit_is_measured_in_a_long_thread() -> None:
    figure = await submit_history.measured(100, 1, 2)

    assert [len(one.rounds[0]) for one in figure.measured] == [2, 2]


@pytest.mark.timeout(60)
async def test_both_records_are_loaded_after_a_kill() -> None:
    figure = await restart_pending.measured(50, 1)

    assert all(one.at(0.0) > 0 for one in figure.measured)


@pytest.mark.timeout(60)
async def test_each_approval_is_written_under_ids_of_its_own(tmp_path: Path) -> None:
    async with open_store(None, tmp_path) as store:
        await store.conn.command("FLUSHALL")
        await pending.multiply(store.conn, pending.earlier_commands(), 7)

        names = [one.decode() for one in await pending.keys_in(store.conn)]
        heads = [one for one in names if ":a:" in one]
        assert len(heads) == len([one for one in names if ":turn:" in one]) == 7
        assert await store.conn.command("ZCARD", "tk:{s0}:x") == 7


async def test_members_that_are_raw_bytes_are_of_their_approvals(
    tmp_path: Path,
) -> None:
    async with open_store(None, tmp_path) as store:
        await pending.open_one(store, pending.agents_of(store), 0)
        commands = await pending.commands_of(store.conn)
        await store.conn.command("FLUSHALL")
        await pending.multiply(store.conn, commands, 7)

        names = [one.decode() for one in await pending.keys_in(store.conn)]
        heads = {one.rpartition("_")[2] for one in names if ":a:" in one}
        listed = await store.conn.command("ZRANGE", "tk:{default}:x", 0, -1)
        assert isinstance(listed, list)
        ids = cast("list[bytes]", listed)
        assert {one.hex() for one in ids} == heads
