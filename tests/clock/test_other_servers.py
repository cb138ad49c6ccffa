"""A server whose clock a test moves is the only one whose clock moves."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.store import Store
from tests.clock.conftest import Clock
from tests.store_secrets import SECRETS


async def test_a_server_that_starts_meanwhile_shows_the_real_time(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    clock.move(days=31)

    async with EmbeddedEngine(tmp_path / "other") as engine:
        other = Store(engine.url, secrets=SECRETS)
        shown, moved = await _seconds(other), await _seconds(store)
        await other.close()

    assert abs(moved - shown - 31 * 86_400) < 3600


async def _seconds(store: Store) -> int:
    seconds, _ = cast("tuple[bytes, bytes]", await store.conn.command("TIME"))
    return int(seconds)
