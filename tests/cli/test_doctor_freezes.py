"""The doctor lists a freeze that is not in every shard, and says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.service.away_shards import AwayShards
from tests.store_secrets import ENV, SECRETS
from twokey.cli import freeze_checks
from twokey.cli.freeze_checks import check_freezes
from twokey.cli.main import run
from twokey.gateway.config import Settings
from twokey.gateway.errors import FreezeIncomplete, SettingsError, StoreUnavailable
from twokey.gateway.service.freezing import FreezeService
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.store import Store

REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
SETTINGS = """\
policy: {version: 1, defaults: {reviewers: U0ANA}}
shards: 4
split_by_agent: true
"""


@pytest.fixture
async def split(store: Store) -> AsyncGenerator[Store]:
    opened = Store(store.conn.url, secrets=SECRETS, shards=4, split=["default"])
    yield opened
    await opened.close()


@pytest.fixture
def away(split: Store, monkeypatch: pytest.MonkeyPatch) -> AwayShards:
    """Let the doctor, too, use a store of which shards are away."""

    def opened(*_: object, **__: object) -> Store:
        return split

    monkeypatch.setattr(freeze_checks, "Store", opened)
    return AwayShards(split, monkeypatch)


@pytest.fixture
def settings(tmp_path: Path, split: Store) -> Settings:
    file = tmp_path / "twokey.yml"
    file.write_text(SETTINGS, encoding="utf-8")
    return Settings.load(file, {**ENV, "TWOKEY_REDIS_URL": split.conn.url})


async def test_freezes_that_are_everywhere_are_counted(
    split: Store, settings: Settings
) -> None:
    await FreezeService(split).freeze(REFUNDS, "ana", "why")

    assert (await check_freezes(settings)).startswith("1 freezes and pauses")


async def test_a_freeze_that_some_shards_lack_is_named_with_what_to_do(
    split: Store, away: AwayShards, settings: Settings
) -> None:
    away.shards = {"s1", "s2"}
    with pytest.raises(FreezeIncomplete):
        await FreezeService(split).freeze(REFUNDS, "ana", "why")

    with pytest.raises(SettingsError) as gone:
        await check_freezes(settings)
    away.shards = set()
    with pytest.raises(SettingsError) as back:
        await check_freezes(settings)

    assert "s1, s2 of 4 shards do not answer, so what is frozen (tool" in str(
        gone.value
    )
    assert "start the servers" in str(gone.value)
    assert "'tool process_refund' is frozen, and s1, s2 of 4 shards lack" in str(
        back.value
    )
    assert "start one" in str(back.value)


async def test_an_end_that_a_shard_lacks_is_named(
    split: Store, away: AwayShards, settings: Settings
) -> None:
    freezes = FreezeService(split)
    await freezes.freeze(REFUNDS, "ana", "why")
    away.shards = {"s3"}
    with pytest.raises(FreezeIncomplete):
        await freezes.unfreeze(REFUNDS, "ana")
    away.shards = set()

    with pytest.raises(SettingsError, match="is unfrozen, and s3 of 4 shards lack"):
        await check_freezes(settings)


async def test_another_number_of_shards_is_not_looked_at(
    split: Store, settings: Settings
) -> None:
    await split.conn.command("SET", split.every_shard()[0].shards, 8)

    with pytest.raises(SettingsError, match="'shards: 8', and it is 4 here"):
        await check_freezes(settings)


async def test_without_any_shard_nothing_is_said_of_freezes(
    away: AwayShards, settings: Settings
) -> None:
    away.shards = {f"s{n}" for n in range(4)}

    with pytest.raises(StoreUnavailable):
        await check_freezes(settings)


async def test_the_doctor_looks_though_the_store_is_not_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "twokey.yml"
    file.write_text(SETTINGS, encoding="utf-8")
    words = ["--config", str(file), "doctor"]

    await asyncio.to_thread(run, words, {"TWOKEY_REDIS_URL": "redis://127.0.0.1:1/0"})

    lines = capsys.readouterr().out.splitlines()
    assert any(" freezes: " in line for line in lines)
