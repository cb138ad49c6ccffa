"""Set the clock of the store, and that by which a process knows what passed since."""

from __future__ import annotations

import time
from collections.abc import Sequence
from fractions import Fraction
from typing import cast

import pytest

from tests.service.harness import ServiceHarness
from twokey.gateway.service.as_shown import AsShownService
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.connection import Argument, Connection, Reply

_IN_SCRIPTS = "redis.call('TIME')"


class StoreClock:
    """What the store and the processes take for now; it stands still until it is moved.

    Keys that end at a moment end by the server's own clock: move it by minutes alone.

    Attributes:
        now_ms: of the store, in scripts and as TIME answers. What passed by the clock
            of the processes is apart: either may go wrong.
    """

    def __init__(self) -> None:
        self.now_ms = time.time_ns() // 1_000_000
        self._passed_ms = 0

    def move(self, by_ms: int) -> None:
        """Let some time pass."""
        self.now_ms += by_ms
        self._passed_ms += by_ms

    def passed_s(self) -> float:
        """Return seconds that passed, of which no difference is rounded."""
        return cast("float", Fraction(self._passed_ms, 1000))

    def set(self, patch: pytest.MonkeyPatch) -> None:
        """Let this be the time until the patch ends."""
        evalsha, transaction = Connection.evalsha, Connection.transaction

        async def evalsha_now(
            conn: Connection,
            source: str,
            keys: Sequence[str],
            args: Sequence[Argument],
            *,
            writes: bool = True,
        ) -> list[Reply]:
            seconds, rest_ms = divmod(self.now_ms, 1000)
            now = f"{{'{seconds}', '{rest_ms * 1000}'}}"
            source = source.replace(_IN_SCRIPTS, now)
            return await evalsha(conn, source, keys, args, writes=writes)

        async def transaction_now(
            conn: Connection, *commands: Sequence[Argument]
        ) -> list[Reply]:
            seconds, rest_ms = divmod(self.now_ms, 1000)
            now: Reply = [b"%d" % seconds, b"%d" % (rest_ms * 1000)]
            found = await transaction(conn, *commands)
            return [
                now if [*words] == ["TIME"] else one
                for words, one in zip(commands, found, strict=True)
            ]

        patch.setattr(Connection, "evalsha", evalsha_now)
        patch.setattr(Connection, "transaction", transaction_now)
        patch.setattr(Loaded, "age_s", 0)

    def keep_in(self, harness: ServiceHarness) -> None:
        """Let the services of a process know by this clock what passed."""
        harness.reviews.as_shown = AsShownService(
            harness.store, lambda: harness.policy, clock=self.passed_s
        )
        known = harness.store.approvals._known  # pyright: ignore[reportPrivateUsage] - whose clock is set
        known._clock = self.passed_s  # pyright: ignore[reportPrivateUsage] - as above
