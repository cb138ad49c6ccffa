"""Give a test a separate real Valkey with a movable clock; no other clock moves."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis
from redis.exceptions import RedisError

from keyturn.gateway.store.embedded.engine import EmbeddedEngine, server_command
from keyturn.gateway.store.store import Store
from tests.clock import faketime
from tests.lifetimes import wrong_lifetimes
from tests.patience import LEASE_MS
from tests.store_secrets import SECRETS

_NEAR_S = 30.0


class Clock:
    """The clock of one server, ahead of the real one by the offset in a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.url = ""
        self._ahead = timedelta()
        self.reset()

    def reset(self) -> None:
        """Show the real time again."""
        self._ahead = timedelta()
        self.move()

    def move(self, *, days: float = 0, hours: float = 0, minutes: float = 0) -> None:
        """Move it from its current time, forth or back; wait until that is visible."""
        self._ahead += timedelta(days=days, hours=hours, minutes=minutes)
        fresh = self.file.with_suffix(".new")
        fresh.write_text(f"{self._ahead.total_seconds():+.0f}\n", encoding="utf-8")
        fresh.replace(self.file)
        self._seen()

    def _seen(self) -> None:
        # What a server answers first may still be of the time before; a server that is
        # down reads the file when it starts.
        if not self.url:
            return
        with suppress(RedisError), _connected(self.url) as server:
            shown_s = _NEAR_S + (expected_s := self._shown_s())
            while abs(shown_s - expected_s) >= _NEAR_S:
                shown_s = server.execute_command("TIME")[0]
                expected_s = self._shown_s()

    def _shown_s(self) -> float:
        now = datetime.now(UTC)  # noqa: TID251 - the real one, that is moved from
        return (now + self._ahead).timestamp()


def _connected(url: str) -> Any:
    return cast("Any", Redis).from_url(url, socket_timeout=5)


@pytest.fixture(scope="session")
def moved_server() -> Generator[tuple[str, Clock]]:
    """Start an embedded Valkey as the product does, under a separate clock."""
    try:
        faketime.library()
    except faketime.NoFaketime as missing:
        pytest.fail(str(missing), pytrace=False)
    folder = Path(tempfile.mkdtemp(prefix="tk-clock-")).resolve()
    clock = Clock(folder / "ahead")
    surroundings = [
        f"{name}={value}" for name, value in faketime.variables(clock.file).items()
    ]

    def command(of: Path, socket: str) -> list[str]:
        words = server_command(of, socket)
        if of != folder / "valkey":
            # The patch lasts as long as the server, so that a restart moves its clock,
            # too; in between, other tests start their servers.
            return words
        # The launcher's five words stay outside: it only starts the rest.
        return [*words[:5], "/usr/bin/env", *surroundings, *words[5:]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keyturn.gateway.store.embedded.engine.server_command", command)
        with EmbeddedEngine(folder / "valkey") as opened:
            clock.url = opened.url
            yield opened.url, clock
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def clock(moved_server: tuple[str, Clock]) -> Clock:
    """Give the clock of the server that this test's store is on."""
    moved_server[1].reset()
    return moved_server[1]


@pytest.fixture
async def store(moved_server: tuple[str, Clock], clock: Clock) -> AsyncGenerator[Store]:
    """Give an empty store; afterwards each key lives as long as it is needed."""
    opened = Store(moved_server[0], secrets=SECRETS, lease_ms=LEASE_MS)
    await opened.conn.command("FLUSHALL")
    yield opened
    wrong = await wrong_lifetimes(opened.conn)
    await opened.close()
    assert not wrong, "; ".join(wrong)
