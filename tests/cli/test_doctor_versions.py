"""The doctor says that calls wait which only a newer version can read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.service.harness import ServiceHarness
from tests.store_secrets import ENV
from twokey.cli.main import run
from twokey.gateway.store import codec
from twokey.gateway.store.store import Store

SETTINGS = "policy: {version: 1, defaults: {reviewers: U0ANA}}\n"


async def test_calls_of_a_newer_version_do_not_count_as_if_somebody_could_approve_them(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "twokey.yml"
    file.write_text(SETTINGS)
    click, _ = await ServiceHarness(store).refund()
    head = store.keys_of_tenant("default").head(click.approval)
    await store.conn.command("HSET", head, "format", f"{codec.FORMAT + 1}")

    env = {**ENV, "TWOKEY_REDIS_URL": store.conn.url}
    await asyncio.to_thread(run, ["--config", str(file), "doctor"], env)

    said = capsys.readouterr().out
    assert "✖ waiting: a newer version of Twokey wrote 1 of the approvals" in said
    assert "every call that waits can be approved" not in said
