"""The number of shards stays what it was when a store was set up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from twokey.cli import jobs
from twokey.cli.command_context import CommandContext
from twokey.cli.main import add
from twokey.gateway.embed import Twokey
from twokey.gateway.errors import SettingsError
from twokey.gateway.policy.load import load_policy
from twokey.gateway.store.connection import Argument, Reply
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.shard_count import ensure_shards
from twokey.gateway.store.store import Store


async def test_a_store_keeps_the_number_that_it_was_set_up_with(store: Store) -> None:
    await ensure_shards(store.conn, 3)

    await ensure_shards(store.conn, 3)
    with pytest.raises(SettingsError, match="'shards: 3', and it is 4 here") as told:
        await ensure_shards(store.conn, 4)
    assert "write 'shards: 3' (TWOKEY_SHARDS)" in str(told.value)


async def test_of_two_first_starts_with_two_numbers_one_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, read = store.conn.command, asyncio.Barrier(2)
    firsts = iter([True, True])

    async def both_read_first(*words: Argument) -> Reply:
        reply = await command(*words)
        if next(firsts, False):
            await read.wait()
        return reply

    monkeypatch.setattr(store.conn, "command", both_read_first)
    starts = [ensure_shards(store.conn, count) for count in (2, 3)]

    done = await asyncio.gather(*starts, return_exceptions=True)

    assert sorted(type(one).__name__ for one in done) == ["NoneType", "SettingsError"]


async def test_a_program_that_names_another_number_does_not_start(
    store: Store, tmp_path: Path
) -> None:
    policy = load_policy("version: 1", "policy.yml")
    async with open_store(store.conn.url, tmp_path, shards=2) as opened:
        assert [keys.shard for keys in opened.every_shard()] == ["s0", "s1"]

    with pytest.raises(SettingsError, match="'shards: 2', and it is 1"):
        async with Twokey(policy=policy, url=store.conn.url, data_dir=tmp_path):
            pass


async def test_a_command_with_another_number_looks_at_nothing(
    store: Store, tmp_path: Path
) -> None:
    # Even where a store need not be durable: it would look for the tenant elsewhere.
    await ensure_shards(store.conn, 2)
    (tmp_path / "twokey.yml").write_text("policy: {version: 1}\n")
    app = typer.Typer()
    add(app, "jobs", jobs)
    app.command()(_other)
    session = CommandContext(
        env={"TWOKEY_REDIS_URL": store.conn.url, "TWOKEY_SHARDS": "5"},
        config=tmp_path / "twokey.yml",
    )

    done = await asyncio.to_thread(
        CliRunner().invoke, app, ["jobs", "list"], obj=session
    )

    assert isinstance(done.exception, SettingsError)
    assert "'shards: 2', and it is 5" in str(done.exception)


def _other() -> None:
    """Be a second command, so that the first one needs its name."""
