"""Store held calls whose callers have left, so that the same call again joins them.

A coding agent waits for a minute at most, and people may take longer. Its model then
makes the same call under another id. That call joins the earlier one only if the
earlier one has no caller and its answer was not collected. So each held call is listed
under its session and content, with the end of its caller's wait. Only its id is stored:
joining is a repeated submission, and the gateway compares it with the first.
"""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from keyturn.gateway.store.connection.connection import Reply, text
from keyturn.gateway.store.store import Store

KEPT = timedelta(hours=24)
"""How long a call may be joined after its last caller."""

_MOMENT_S = 60.0
"""How long a caller that joins a call may take until it waits."""

_KEPT_MS = int(KEPT.total_seconds() * 1000)


class LeftCalls:
    """The held calls of one tenant that a later call may join.

    Each method raises `StoreUnavailable` when the store does not answer.

    Args:
        store: the store.
        tenant: owner of the calls.
    """

    def __init__(self, store: Store, *, tenant: str) -> None:
        self._conn = store.conn
        self._keys = store.keys_of_tenant(tenant)

    async def earlier(self, place: str, session: str, call: str) -> str:
        """Return the id of the call to submit: an earlier same call, or this one.

        A call that continues an earlier one is its only caller from now on.

        Args:
            place: agent, session and content of the call.
            session: agent and session of the call.
            call: its id.
        """
        name = self._keys.left_calls(place)
        listed, joined = await self._conn.transaction(
            ["ZRANGE", name, 0, -1, "WITHSCORES"],
            ["GET", self._keys.joined_call(f"{session} {call}")],
        )
        if joined is not None:
            return text(joined)
        rows = cast("list[Reply]", listed)
        waits = {
            text(id_): float(text(until))
            for id_, until in zip(rows[::2], rows[1::2], strict=True)
        }
        if call in waits:
            return call
        for found, until in waits.items():
            is_free = until <= self._conn.clock.now_s()
            # Atomic: of two callers, one takes it.
            if is_free and await self._conn.command("ZREM", name, found):
                joined_at = self._keys.joined_call(f"{session} {call}")
                await self._conn.transaction(
                    *self._listing(place, found, _MOMENT_S),
                    ["SET", joined_at, found, "PX", _KEPT_MS],
                )
                return found
        return call

    async def hold(self, place: str, call: str, wait_s: float) -> None:
        """List a call whose caller waits so long; 0: it has left."""
        await self._conn.transaction(*self._listing(place, call, wait_s))

    def _listing(self, place: str, call: str, wait_s: float) -> list[list[str | int]]:
        name = self._keys.left_calls(place)
        until = f"{self._conn.clock.now_s() + wait_s:.3f}"
        return [["ZADD", name, until, call], ["PEXPIRE", name, _KEPT_MS]]

    async def collected(self, place: str, call: str) -> None:
        """Remove a call whose answer its caller gets: the same call again is new."""
        await self._conn.command("ZREM", self._keys.left_calls(place), call)

    async def joined(self, session: str, call: str) -> str:
        """Return the id of the joined earlier call; for other calls, the same id."""
        found = await self._conn.command(
            "GET", self._keys.joined_call(f"{session} {call}")
        )
        return call if found is None else text(found)
