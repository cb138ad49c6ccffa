"""The outbox: a stream of events, consumed at least once.

Each event is also in the audit log. The outbox drops events after all readers took
them. A program that was offline catches up from the audit log (`AuditLog.follow`), any
number of times.
"""

from __future__ import annotations

import logging
from typing import cast

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.store.connection.connection import (
    Connection,
    Entry,
    Reply,
    claimed,
    entries,
    first_stream,
    milliseconds,
    number,
    text,
)
from keyturn.gateway.store.events.readers import (
    entry_id,
    has_group,
    make_group,
    reader_states,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.event_seals import decrypted_event, read_seal
from keyturn.gateway.store.sealing.sealing import Sealed, Sealing, write_if

logger = logging.getLogger(__name__)


class Outbox:
    """The event stream of one tenant for one named reader.

    Each reader (Slack, a metric, another chat) has a consumer group and gets every
    event. Invalid entries would block later ones, so they are skipped, reported and
    counted in ``corrupt``.
    """

    def __init__(
        self, conn: Connection, keys: Keys, *, reader: str, sealing: Sealing
    ) -> None:
        self._conn = conn
        self._sealing = sealing
        self._keys = keys
        self.reader = reader
        self.corrupt = 0
        self._taken = "0-0"

    async def prepare(self) -> None:
        """Create this reader's group if it is missing, starting at the first event."""
        await make_group(self._conn, self._keys.outbox, self.reader)

    async def is_known(self) -> bool:
        """Return whether this reader has a group, so that its events are kept."""
        return await has_group(self._conn, self._keys, self.reader)

    async def put(self, event: Event) -> None:
        """Announce an event without a change of an approval, such as a finished run."""
        await write_if(self._conn, self._keys, [], outbox=[event], audit=[event])

    async def left(
        self, consumer: str, *, start: str = "0-0", limit: int = 500
    ) -> tuple[list[Event], str]:
        """Return a page of events that any consumer took and did not acknowledge.

        Returns:
            The events in order, and the start of the next page; "" after the last.
        """
        reply = await self._conn.command(
            "XAUTOCLAIM", self._keys.outbox, self.reader, consumer, 0,
            start, "COUNT", limit,
        )  # fmt: skip
        after = text(cast("list[Reply]", reply)[0])
        found = claimed(reply)
        self._taken = max((self._taken, *(one.id for one in found)), key=entry_id)
        return await self._readable(found), "" if after == "0-0" else after

    async def unread_ms(self) -> int:
        """Return the age of the oldest event that this reader has not taken."""
        groups = await reader_states(self._conn, self._keys)
        taken = next((one.taken for one in groups if one.name == self.reader), "0-0")
        # "(" makes the start exclusive.
        found, now = await self._conn.transaction(
            ["XRANGE", self._keys.outbox, f"({taken}", "+", "COUNT", 1], ["TIME"]
        )
        oldest = entries(found)
        if not oldest:
            return 0
        return max(0, milliseconds(now) - entry_id(oldest[0].id)[0])

    async def take(
        self, consumer: str, *, block_ms: int, limit: int = 100
    ) -> list[Event]:
        """Take new events; wait up to ``block_ms`` for the first one.

        Only one process at a time takes the events of a reader, one page at a time.
        """
        resent = self._conn.resent
        reply = await self._conn.command(
            "XREADGROUP", "GROUP", self.reader, consumer, "COUNT", limit,
            "BLOCK", block_ms, "STREAMS", self._keys.outbox, ">",
        )  # fmt: skip
        if self._conn.resent != resent:
            # The replies to earlier requests may be lost. The server counts their
            # events as taken, so `>` would never return them again.
            ms, index = entry_id(self._taken)
            start = f"{ms}-{index + 1}"
            lost, _ = await self.left(consumer, start=start, limit=limit * 9)
            return lost
        found = first_stream(reply)
        self._taken = max((self._taken, *(one.id for one in found)), key=entry_id)
        return await self._readable(found)

    async def _readable(self, found: list[Entry]) -> list[Event]:
        read: list[Event] = []
        for entry in found:
            try:
                read.append(event_in(self._conn, self._keys, entry))
            except (KeyError, ValueError) as error:
                if isinstance(error, KeyError | NotSealed):
                    # Report it before it is acknowledged: others may need it.
                    junk = b"\n".join(entry.values.values())
                    await self._sealing.refuse(self._keys, Sealed.EVENT, junk)
                self.corrupt += 1
                logger.error(  # noqa: TRY400 - the error may hold what was written
                    "event.corrupt reader=%s seq=%s count=%d",
                    self.reader,
                    entry.id,
                    self.corrupt,
                )
                # Acknowledged anyway: an entry that stays pending would keep the
                # outbox from being trimmed.
                await self.done(entry.id)
        return read

    async def done(self, *seqs: str) -> None:
        """Acknowledge events by their ``seq``."""
        if seqs:
            await self._conn.command("XACK", self._keys.outbox, self.reader, *seqs)


class NotSealed(ValueError):
    """An outbox entry that another program wrote or changed."""


def event_in(conn: Connection, keys: Keys, entry: Entry) -> Event:
    """Verify and parse the event in an outbox entry.

    Raises:
        KeyError: the entry has no event.
        NotSealed: its seal is invalid.
        ValueError: it cannot be parsed.
    """
    body = decrypted_event(conn, keys, entry.values["e"])
    # Surrogates: bytes other than UTF-8 fail the check and must not raise.
    event, seal = (
        one.decode("utf-8", "surrogateescape")
        for one in (body, entry.values.get("s", b""))
    )
    if read_seal(conn, keys, event, seal) is not SealState.SEALED:
        raise NotSealed
    return Event.model_validate_json(body).with_(
        at_ms=number(entry.values["at"]), seq=entry.id
    )
