"""Change approvals of one tenant: read, compute, compare and write, all or none.

Changes of this process that compete with each other take turns. Changes of one approval
go one after the other, and each is computed from what the one before it wrote, without
another reading. Two hundred at once would otherwise nearly all lose each comparison,
and most would run out of attempts.

Changes of several approvals compete when their calls have the same effect, so that each
changes the precedents of the others. Such a change waits for the others only after it
lost an attempt. Turns only save attempts: every write is still compared with what was
read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.store.atomic_write import Loaded, WriteMany
from keyturn.gateway.store.connection import Connection, fields, milliseconds
from keyturn.gateway.store.encryption import unpacked
from keyturn.gateway.store.freezes import freeze_lists
from keyturn.gateway.store.keys import Keys, tenant_of_approval
from keyturn.gateway.store.known_records import KnownRecords
from keyturn.gateway.store.record_seals import Stored
from keyturn.gateway.store.spending import spend_again
from keyturn.gateway.store.writing import write

MOST_CHANGED = 50
"""How many approvals may change in one step: the server does nothing else meanwhile."""

Found = TypeVar("Found")
Compute = Callable[[Mapping[str, Loaded]], Awaitable[Found]]

# A lost comparison nearly always means that somebody else's write went through: sixteen
# in a row are a crowd and no livelock, and the person clicks again.
ATTEMPTS = 16
BUSY = "Too many changed this at once; nothing of yours was recorded. Please try again."

_PAUSE_S = 0.03
"""How much the pause before another attempt grows with each, at most: 3 s in all."""

LONGEST_S = 10.0
"""How long a change waits for its turn; then it goes on without one."""


class Changes:
    """Changes of approvals: the only way to move one.

    Args:
        conn: the server.
        known: what this process read or wrote of approvals before.
    """

    def __init__(self, conn: Connection, known: KnownRecords) -> None:
        self._conn = conn
        self._known = known
        self._turns = Turns()

    async def change(
        self,
        keys: Keys,
        approval_ids: Iterable[str],
        compute: Compute[Found],
        seen: Mapping[str, Loaded],
    ) -> Found:
        """Compute the next versions of approvals, and write all or none.

        Args:
            keys: of their tenant.
            approval_ids: of the approvals, at most `MOST_CHANGED`.
            compute: given what was read, by id and without those that are not there,
                returns a `WriteMany`, or an answer instead. It is called again when
                something moved.
            seen: what the caller has just read; spares one reading.

        Returns:
            What was written, or the answer.

        Raises:
            StoreUnavailable: something moved all the time; nothing was written.
            CorruptRecord: when a record is corrupt.
            ValueError: when there are too many.
        """
        here = _ids_of(keys, approval_ids)
        confirmed: dict[str, int] | None = None
        lost: WriteMany | None = None
        async with self._turns.of(here) as turn:
            known, is_passed_on = {**seen, **turn.after}, bool(turn.after)
            for attempt in range(ATTEMPTS):
                await pause_before(attempt)
                loaded = known
                if not known.keys() >= {*here}:
                    loaded = await load_many(self._conn, self._known, keys, here)
                # Beaten by itself: sent again, after a connection that broke.
                is_kept = lost is not None and _is_stored(lost, loaded)
                found = cast("Found", lost) if is_kept else await compute(loaded)
                if is_kept and lost:
                    for one in lost.writes:
                        read = loaded[one.approval.id]
                        await spend_again(self._conn.ledger, read, one.standing)
                if isinstance(found, WriteMany) and not is_kept:
                    resent = self._conn.resent
                    if written := await self._write(keys, loaded, found):
                        turn.pass_on(written)
                        return found
                    lost = found if self._conn.resent != resent else None
                    if attempt == 0:
                        await turn.wait_for_effects(found)
                elif not is_passed_on:
                    revs = {one: each.approval.rev for one, each in loaded.items()}
                    if not self._conn.confirmed_by or confirmed == revs:
                        return found
                    # An answer about what an earlier try wrote, which replicas may
                    # lack. Read again afterwards: another master may have come.
                    await self._conn.confirm(keys.expiry)
                    confirmed = revs
                # What was read before serves once: the second try would fail, too. And
                # an answer is about what was read, since others may have written.
                known, is_passed_on = {}, False
        raise StoreUnavailable(BUSY)

    async def _write(
        self, keys: Keys, seen: Mapping[str, Loaded], what: WriteMany
    ) -> list[Loaded]:
        written = await write(self._conn, keys, seen, what)
        for one in written:
            self._known.wrote(one)
        if not written and any(one.unfrozen for one in what.writes):
            await freeze_lists(self._conn).refresh(keys)
        return written


def _ids_of(keys: Keys, approval_ids: Iterable[str]) -> list[str]:
    wanted = list(dict.fromkeys(approval_ids))
    if len(wanted) > MOST_CHANGED:
        raise ValueError(f"{len(wanted)} approvals cannot be changed in one step")
    # An approval of another tenant is not theirs.
    return [one for one in wanted if tenant_of_approval(one) == keys.tenant]


def _is_stored(what: WriteMany, loaded: Mapping[str, Loaded]) -> bool:
    after = (one.approval for one in what.writes)
    return all(one.id in loaded and loaded[one.id].approval == one for one in after)


async def load_many(
    conn: Connection, known: KnownRecords, keys: Keys, approval_ids: Sequence[str]
) -> dict[str, Loaded]:
    """Read those approvals of a tenant that are there, as of one moment.

    Raises:
        ForgedRecord: when one is not as it was sealed.
        CorruptRecord: when a record is corrupt.
    """
    lasting = known.lasting(approval_ids)
    # One MULTI: the time is that of the reading.
    *replies, time = await conn.transaction(
        *(
            command
            for one in approval_ids
            for command in (["HGETALL", keys.head(one)], ["GET", keys.document(one)])
        ),
        ["TIME"],
    )
    now_ms, found = milliseconds(time), dict[str, Loaded]()
    rows = [
        (approval_id, Stored(fields(head), cast("bytes", document)))
        for approval_id, head, document in zip(
            approval_ids, replies[::2], replies[1::2], strict=True
        )
        if head and document
    ]
    for approval_id, stored in rows:
        parse = partial(
            known.parsed,
            approval_id,
            stored,
            lasting=lasting[approval_id],
            # With replicas, what another process wrote may not be confirmed yet.
            is_lasting=not conn.confirmed_by,
        )
        approval = await aside(parse, [_text(stored.document)])
        found[approval_id] = Loaded(approval, now_ms, stored=stored)
    return found


def _text(stored: bytes) -> bytes:
    with suppress(ValueError):
        return unpacked(stored)
    return stored  # encrypted, or damaged


async def pause_before(attempt: int) -> None:
    """Pause before an attempt, counted from 0; not before the first two."""
    # Another process that writes one call after the other is faster than who has to
    # read first, until it is through.
    if attempt > 1:
        await asyncio.sleep(random.uniform(0, _PAUSE_S * attempt))  # noqa: S311


class SharedTurn(asyncio.Lock):
    """The turn of an approval or of an effect, and the last write in it."""

    written: Loaded | None = None


class Turn(NamedTuple):
    """The turn of one change.

    Attributes:
        after: by approval, what the change before it wrote.
        pass_on: notes what this change wrote, for the changes after it.
        wait_for_effects: waits also for the effects of a lost change. Call it once: a
            change that holds some locks and asks for more could wait for a change that
            waits for it.
    """

    after: Mapping[str, Loaded]
    pass_on: Callable[[Iterable[Loaded]], None]
    wait_for_effects: Callable[[WriteMany], Awaitable[None]]


class Turns:
    """Locks by approval and by effect; each lives as long as it is used."""

    def __init__(self) -> None:
        # By event loop: threads share a store, and a lock belongs to one loop.
        self._locks = WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakValueDictionary[str, SharedTurn]
        ]()

    @asynccontextmanager
    async def of(self, approval_ids: Iterable[str]) -> AsyncGenerator[Turn]:
        """Wait for the turn of each of these approvals; it ends with the block."""
        async with AsyncExitStack() as held:
            own = await self._take(held, approval_ids)

            def pass_on(written: Iterable[Loaded]) -> None:
                for one in written:
                    own[one.approval.id].written = one

            after = {key: one.written for key, one in own.items() if one.written}
            yield Turn(after, pass_on, partial(self._take_effects, held))

    async def _take_effects(self, held: AsyncExitStack, lost: WriteMany) -> None:
        known = (one.known for each in lost.writes for one in each.inputs.values())
        await self._take(held, {one.key for one in known if one})

    async def _take(
        self, held: AsyncExitStack, names: Iterable[str]
    ) -> dict[str, SharedTurn]:
        loop = asyncio.get_running_loop()
        locks = self._locks.setdefault(loop, WeakValueDictionary[str, SharedTurn]())
        # In one order for everybody, or two would wait for each other.
        turns = {name: locks.setdefault(name, SharedTurn()) for name in sorted(names)}
        try:
            async with asyncio.timeout(LONGEST_S):
                for turn in turns.values():
                    await held.enter_async_context(turn)
        except TimeoutError:
            # A store that hangs must not hold up one change after the other.
            await held.aclose()
        return turns
