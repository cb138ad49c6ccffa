"""Store at-most-once records of auto-approved calls, with their results.

A call that people decided about is claimed, with an approval for its record. This is
the same promise for the others: under one lease on its thread a call may run as often
as its agent runs it, and no later holder of the lease repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.store.connection import Connection, Reply, text
from keyturn.gateway.store.fences import current, unheld
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.script import Script
from keyturn.gateway.store.sealing import Sealed, Sealing

BEGIN = Script("auto_run", is_fenced=True)
NOTE = Script("auto_run")


Word = Literal["run", "ran", "cut_off"]
Note = Literal["enter", "end", "give_back"]
"""An agent began inside the call; what it came to; it paused or raised."""


@dataclass(frozen=True)
class Begun:
    """Whether a call may run; ``result`` for one that ran before.

    ``is_kept`` is False without a lease: then nothing is kept of the call.
    """

    word: Word
    result: Result | None = None
    is_kept: bool = True


class AutoRunStore:
    """Auto-approved calls under leases. Without a lease nothing is kept of them."""

    def __init__(self, conn: Connection, sealing: Sealing) -> None:
        self._conn = conn
        self._sealing = sealing

    @property
    def is_kept(self) -> bool:
        """Return whether anything is kept of a call that begins now."""
        return current() is not None

    @property
    def is_checked(self) -> bool:
        """Return whether a call that begins now may be refused."""
        return self.is_kept or bool(unheld())

    async def check_unheld(self) -> None:
        """Refuse to begin a call in a thread that another process runs.

        Raises:
            LeaseLost: somebody has the lease that nobody may have here.
        """
        if (key := unheld()) and await self._conn.command("EXISTS", key):
            raise LeaseLost

    async def begin(
        self, keys: Keys, turn_key: str, call: str, *, repeats: bool
    ) -> Begun:
        """Ask to run a call; ``repeats`` lets one run again that was cut off.

        What a call came to is told only as this or another gateway sealed it.

        Raises:
            LeaseLost: another holder has the lease now.
        """
        reply = await self._run(keys, turn_key, "begin", call, repeats=repeats)
        if not reply:
            return Begun("run", is_kept=False)
        word = cast("Word", text(reply[0]))
        if word != "ran":
            return Begun(word)
        stored, place = cast("bytes", reply[1]), (keys.begun(turn_key), call)
        result = self._sealing.opened(Sealed.CALL_END, place, stored)
        if result is None:
            await self._sealing.refuse(keys, Sealed.CALL_END, stored, name=call)
            # It ran once; what came of it is not known any more.
            return Begun("cut_off")
        return Begun(word, Result.model_validate_json(result))

    async def note(
        self,
        keys: Keys,
        turn_key: str,
        verb: Note,
        call: str,
        result: Result | None = None,
    ) -> None:
        """Note what happens to a call that began; ``result`` is for `end`."""
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
        # What a call came to is the truth, however late it is told.
        # Only the beginning is fenced.
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
