"""Store held calls whose callers have left, so that the same call again joins them.

A coding agent waits for a minute at most, and people may take longer. Its model then
makes the same call under another id. That call joins the earlier one only if the
earlier one has no caller and its answer was not collected. So each held call is listed
under its session and content, with the end of its caller's wait. Only its id is stored:
joining is a repeated submission, and the gateway compares it with the first.

Both lists are sealed: with write access to the store alone, a call in another folder
could join, and a call that was handed over before could be joined again and again.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import cast

from keyturn.gateway.store.connection.connection import Reply, text
from keyturn.gateway.store.sealing.sealing import Sealed, write_if
from keyturn.gateway.store.store import Store

KEPT = timedelta(hours=24)
"""How long a call may be joined after its last caller."""

_MOMENT_S = 60.0
"""How long a caller that joins a call may take until it waits."""

Command = list[str | bytes | int]

_KEPT_MS = int(KEPT.total_seconds() * 1000)


class LeftCalls:
    """The held calls of one tenant that a later call may join.

    Each method raises `StoreUnavailable` when the store does not answer.

    Args:
        store: the store.
        tenant: owner of the calls.
    """

    def __init__(self, store: Store, *, tenant: str) -> None:
        self._conn, self._sealing = store.conn, store.sealing
        self._keys = store.keys_of_tenant(tenant)

    async def earlier(self, place: str, session: str, call: str) -> tuple[str, bool]:
        """Return the id of the call to submit: an earlier same call, or this one.

        A call that continues an earlier one is its only caller from now on. Also
        returns True if the asking call had its answer before.

        Args:
            place: agent, session and content of the call.
            session: agent and session of the call.
            call: its id.
        """
        name, joined_at = self._keys.left_calls(place), self._joined_at(session, call)
        listed, joined = await self._conn.transaction(
            ["ZRANGE", name, 0, -1, "WITHSCORES"], ["GET", joined_at]
        )
        if (found := self._opened(joined_at, joined)) and found[1] == name:
            return found[0], found[2]
        rows = cast("list[Reply]", listed)
        waits = dict(zip(map(text, rows[::2]), map(text, rows[1::2]), strict=True))
        if self._member(name, call) in waits:
            return call, False
        for member, until in waits.items():
            found_call = self._of_member(name, member)
            if not found_call or float(until) > self._conn.clock.now_s():
                continue
            # Of two callers that read the same list, only the first finds this score.
            is_taken = await write_if(
                self._conn,
                self._keys,
                [(["ZSCORE", name, member], until)],
                *self._listing(place, found_call, _MOMENT_S),
                self._joining(joined_at, found_call, name),
            )
            if is_taken:
                return found_call, False
        return call, False

    async def hold(self, place: str, call: str, wait_s: float) -> None:
        """List a call whose caller waits so long; 0: it has left."""
        await self._conn.transaction(*self._listing(place, call, wait_s))

    def _listing(self, place: str, call: str, wait_s: float) -> list[Command]:
        name = self._keys.left_calls(place)
        until = f"{self._conn.clock.now_s() + wait_s:.3f}"
        member = self._member(name, call)
        return [["ZADD", name, until, member], ["PEXPIRE", name, _KEPT_MS]]

    async def collected(
        self, place: str, session: str, call: str, found: str, *, may_repeat: bool
    ) -> None:
        """Remove a call whose answer its caller gets: the same call again is new.

        Args:
            place: as in `earlier`.
            session: as in `earlier`.
            call: the id of the asking call.
            found: the id that `earlier` returned for it.
            may_repeat: the asking call may get the same answer again.
        """
        name, joined_at = self._keys.left_calls(place), self._joined_at(session, call)
        joins = self._joining(joined_at, found, name, is_collected=may_repeat)
        await self._conn.transaction(
            ["ZREM", name, self._member(name, found)],
            *([] if found == call else [joins]),
        )

    async def joined(self, session: str, call: str) -> str:
        """Return the id of the joined earlier call; for other calls, the same id."""
        joined_at = self._joined_at(session, call)
        found = self._opened(joined_at, await self._conn.command("GET", joined_at))
        return found[0] if found else call

    def _joined_at(self, session: str, call: str) -> str:
        return self._keys.joined_call(f"{session} {call}")

    def _joining(
        self, joined_at: str, call: str, name: str, *, is_collected: bool = False
    ) -> Command:
        body = json.dumps([call, name, is_collected]).encode()
        sealed = self._sealing.sealed(Sealed.JOINED_CALL, (joined_at,), body)
        return ["SET", joined_at, sealed, "PX", _KEPT_MS]

    def _opened(self, joined_at: str, stored: Reply) -> tuple[str, str, bool] | None:
        if not isinstance(stored, bytes):
            return None
        body = self._sealing.opened(Sealed.JOINED_CALL, (joined_at,), stored)
        # One with an invalid seal joins nothing: people are asked.
        return json.loads(body) if body else None

    def _member(self, name: str, call: str) -> str:
        seal = self._sealing.keys.make(Sealed.LEFT_CALL, (name,), call.encode())
        return f"{seal.hex()} {call}"

    def _of_member(self, name: str, member: str) -> str:
        """Return the call of a member; "" if its seal is invalid."""
        _, _, call = member.partition(" ")
        return call if member == self._member(name, call) else ""
