"""Store at-most-once records of auto-approved calls, with their results.

Calls with a human decision are claimed on their approval's record. This module gives
auto-approved calls the same guarantee: under one lease a call may run as often as its
agent runs it, and no later holder of the lease repeats it.
"""

from __future__ import annotations

from typing import Literal, cast

from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.protocol.wire import CallBegun
from keyturn.gateway.store.connection.connection import Reply, text
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.scripts.fences import current, unheld
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.sealing import Repository, Sealed

BEGIN = Script("auto_run", is_fenced=True)
NOTE = Script("auto_run")


Note = Literal["enter", "end", "give_back"]
"""The agent entered the call; its result; it paused or raised."""


class AutoRunStore(Repository):
    """Auto-approved calls under leases. Without a lease nothing is recorded."""

    @property
    def is_kept(self) -> bool:
        """Return whether a call that begins now is recorded."""
        return current() is not None

    @property
    def is_checked(self) -> bool:
        """Return whether a call that begins now may be refused."""
        return self.is_kept or bool(unheld())

    async def check_unheld(self) -> None:
        """Raise if another process holds the lease of the thread.

        Raises:
            LeaseLost: a lease is held that must be free.
        """
        if (key := unheld()) and await self._conn.command("EXISTS", key):
            raise LeaseLost

    async def begin(
        self, keys: Keys, turn_key: str, call: str, *, repeats: bool
    ) -> CallBegun:
        """Request to run a call; ``repeats`` allows another run after an interruption.

        A stored result counts only with a gateway's seal.

        Raises:
            LeaseLost: another process has the lease now.
        """
        reply = await self._run(keys, turn_key, "begin", call, repeats=repeats)
        if not reply:
            return CallBegun(keeps_result=False)
        if (word := text(reply[0])) != "ran":
            return CallBegun(may_run=word == "run")
        stored, place = cast("bytes", reply[1]), (keys.begun(turn_key), call)
        result = self._sealing.opened(Sealed.CALL_END, place, stored)
        if result is None:
            await self._sealing.refuse(keys, Sealed.CALL_END, stored, name=call)
            # It ran once; its result is unknown.
            return CallBegun(may_run=False)
        return CallBegun(may_run=False, result=Result.model_validate_json(result))

    async def note(
        self,
        keys: Keys,
        turn_key: str,
        verb: Note,
        call: str,
        result: Result | None = None,
    ) -> None:
        """Record progress of a call; ``result`` is for `end`."""
        await self._run(keys, turn_key, verb, call, result=result)

    async def _run(
        self,
        keys: Keys,
        turn_key: str,
        verb: str,
        call: str,
        *,
        result: Result | None = None,
        repeats: bool = False,
    ) -> list[Reply]:
        lease = current()
        if lease is None:
            return []
        # A late result is still true, so only the beginning is fenced.
        script = BEGIN if verb == "begin" else NOTE
        body = result.model_dump_json().encode() if result else b""
        place = (keys.begun(turn_key), call)
        return await script(
            self._conn,
            begun=keys.begun(turn_key),
            verb=verb,
            call=call,
            fence=lease.fence,
            result=self._sealing.sealed(Sealed.CALL_END, place, body) if body else b"",
            repeats=repeats,
            keep_ms=KEEP_MS,
        )
