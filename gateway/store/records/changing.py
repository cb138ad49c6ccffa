"""Change approvals of one tenant atomically: read, compute, compare and write.

Competing changes of one process take turns. Changes of the same approval run one after
another, and each starts from its predecessor's result without another read. Otherwise
200 concurrent changes would lose nearly every comparison, and most would run out of
attempts.

Changes of different approvals compete if their calls have the same effect: each one
changes the precedents of the others. Such a change waits for the others only after a
failed attempt. Turns only save attempts: every write is still compared with the state
that was read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import MappingProxyType
from typing import TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from keyturn.gateway import tracing
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.events import WAITED_MS
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.metrics.fold import outcome_of
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.store.connection.connection import (
    Command,
    Connection,
    Reply,
    fields,
    milliseconds,
)
from keyturn.gateway.store.keys import Keys, tenant_of_approval
from keyturn.gateway.store.limits.freezes import freezes_of
from keyturn.gateway.store.records.atomic_write import (
    Loaded,
    WriteMany,
    spend_again,
    write,
)
from keyturn.gateway.store.records.codec import Stored
from keyturn.gateway.store.records.known_records import KnownRecords
from keyturn.gateway.store.sealing.encryption import unpacked

MOST_CHANGED = 50
"""Limit of approvals in one step: the server is blocked while it runs."""

Found = TypeVar("Found")
Compute = Callable[[Mapping[str, Loaded]], Awaitable[Found]]

# A failed comparison nearly always means that another write succeeded. Sixteen failures
# in a row mean heavy contention, not a livelock, and the person can click again.
ATTEMPTS = 16
BUSY = "Too many changed this at once; nothing of yours was recorded. Please try again."

_PAUSE_S = 0.03
"""Growth of the longest pause with each attempt; at most 3 s altogether."""

LONGEST_S = 10.0
"""How long a change waits for its turn before it continues without one."""


class Changes:
    """The only way to change approvals.

    Args:
        conn: the server.
        known: revisions that this process read or wrote.
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
        *,
        read: Mapping[str, Loaded] = MappingProxyType({}),
    ) -> Found:
        """Compute the next versions of approvals, and write all or none of them.

        Args:
            keys: keys of the approvals' tenant.
            approval_ids: at most `MOST_CHANGED`.
            compute: gets the existing approvals by id; returns a `WriteMany`, or a
                result that needs no write. It is called again after a conflict.
            read: those of them that were read a moment ago, for the first attempt.

        Returns:
            The `WriteMany` that was written, or the result of ``compute``.

        Raises:
            StoreUnavailable: every attempt met a conflict; nothing was written.
            CorruptRecord: when a record is corrupt.
            ValueError: when there are too many approvals.
        """
        here = _ids_of(keys, approval_ids)
        confirmed: dict[str, int] | None = None
        lost: WriteMany | None = None
        async with AsyncExitStack() as held:
            own = await self._turns.take(held, here)
            known = {**read}
            known |= {name: one.written for name, one in own.items() if one.written}
            is_passed_on = bool(known)
            for attempt in range(ATTEMPTS):
                await pause_before(attempt)
                loaded = known
                if not known.keys() >= {*here}:
                    loaded, _ = await load_many(self._conn, self._known, keys, here)
                # After a broken connection, a resent write conflicts with itself.
                is_kept = lost is not None and _is_stored(lost, loaded)
                found = cast("Found", lost) if is_kept else await compute(loaded)
                if is_kept and lost:
                    for one in lost.writes:
                        stored = loaded[one.approval.id]
                        await spend_again(self._conn.ledger, stored, one.standing)
                if isinstance(found, WriteMany) and not is_kept:
                    resent = self._conn.resent
                    if await self._write(keys, loaded, found, own):
                        return found
                    lost = found if self._conn.resent != resent else None
                    if attempt == 0:
                        # Only once: two changes that hold locks and request more
                        # could deadlock.
                        await self._turns.take(held, _effects_of(found))
                elif not is_passed_on:
                    revs = {one: each.approval.rev for one, each in loaded.items()}
                    if not self._conn.confirmed_by or confirmed == revs:
                        return found
                    # The result may depend on a write that replicas lack. Read again
                    # after the confirmation: there may be a new master.
                    await self._conn.confirm(keys.expiry)
                    confirmed = revs
                # Passed records serve one attempt: a conflict would repeat. A result
                # needs a fresh read, too, since other processes may have written.
                known, is_passed_on = {}, False
        raise StoreUnavailable(BUSY)

    async def _write(
        self,
        keys: Keys,
        seen: Mapping[str, Loaded],
        what: WriteMany,
        turns: Mapping[str, SharedTurn],
    ) -> bool:
        """Write changes, and pass the new versions on to the next turns."""
        written = await write(self._conn, keys, seen, what)
        for one in written:
            turns[one.approval.id].written = one
            if one.stored is not None:
                self._known.remember(one.approval, one.stored)
        for each in what.writes if written else ():
            _trace_waits(each.change)
        if not written and any(one.unfrozen for one in what.writes):
            await freezes_of(self._conn).refresh(keys)
        return bool(written)


def _trace_waits(change: Change) -> None:
    """Trace the waits for people that a change ends."""
    approval = change.approval
    for event in change.events if approval.trace else ():
        outcome = outcome_of(event)
        if outcome is None:
            continue
        item = approval.items[approval_of(event.item)[1]]
        waited_ms = event.data.get(WAITED_MS)
        since_ms = approval.created_at_ms
        if waited_ms is not None:
            since_ms = item.changed_at_ms - int(waited_ms)
        told = tracing.about(
            item.tool, item.ctx.tool_call_id, item.tier, item.id, decision=outcome
        )
        span_ns = since_ms * 1_000_000, item.changed_at_ms * 1_000_000
        tracing.record("keyturn.wait", approval.trace, told, *span_ns)


def _ids_of(keys: Keys, approval_ids: Iterable[str]) -> list[str]:
    wanted = list(dict.fromkeys(approval_ids))
    if len(wanted) > MOST_CHANGED:
        raise ValueError(f"{len(wanted)} approvals cannot be changed in one step")
    # Approvals of other tenants are treated as missing.
    return [one for one in wanted if tenant_of_approval(one) == keys.tenant]


def _is_stored(what: WriteMany, loaded: Mapping[str, Loaded]) -> bool:
    after = (one.approval for one in what.writes)
    return all(one.id in loaded and loaded[one.id].approval == one for one in after)


def _effects_of(lost: WriteMany) -> set[str]:
    """Return the effects that a change shares with changes of other approvals."""
    known = (one.known for each in lost.writes for one in each.inputs.values())
    return {one.key for one in known if one}


async def load_many(
    conn: Connection,
    known: KnownRecords,
    keys: Keys,
    approval_ids: Sequence[str],
    more: Sequence[Command] = (),
) -> tuple[dict[str, Loaded], list[Reply]]:
    """Read the existing approvals of a list in one consistent snapshot.

    Args:
        conn: the server.
        known: revisions that this process read or wrote.
        keys: keys of the approvals' tenant.
        approval_ids: the approvals.
        more: commands that read other data of the tenant in the same snapshot.

    Returns:
        The approvals by id, and the replies to ``more``.

    Raises:
        ForgedRecord: when a record's seal is invalid.
        CorruptRecord: when a record is corrupt.
    """
    lasting = known.lasting(approval_ids)
    # One MULTI: the time belongs to the same snapshot.
    time, *replies = await conn.transaction(
        ["TIME"],
        *(
            command
            for one in approval_ids
            for command in (["HGETALL", keys.head(one)], ["GET", keys.document(one)])
        ),
        *more,
    )
    records = replies[: 2 * len(approval_ids)]
    now_ms, found = milliseconds(time), dict[str, Loaded]()
    rows = [
        (approval_id, Stored(fields(head), cast("bytes", document)))
        for approval_id, head, document in zip(
            approval_ids, records[::2], records[1::2], strict=True
        )
        if head and document
    ]
    for approval_id, stored in rows:
        parse = partial(known.parsed, approval_id, stored, lasting[approval_id])
        approval = await aside(parse, [_text(stored.document)])
        # With replicas, another process's write may be unconfirmed.
        if not conn.confirmed_by:
            known.remember(approval, stored)
        found[approval_id] = Loaded(approval, now_ms, stored=stored)
    return found, replies[len(records) :]


def _text(stored: bytes) -> bytes:
    with suppress(ValueError):
        return unpacked(stored)
    return stored  # encrypted, or damaged


async def pause_before(attempt: int) -> None:
    """Pause before an attempt, counted from 0; not before the first two."""
    # A process with a series of calls writes faster than one that has to read first.
    # The pause gives the series time to finish.
    if attempt > 1:
        await asyncio.sleep(random.uniform(0, _PAUSE_S * attempt))  # noqa: S311


class SharedTurn(asyncio.Lock):
    """Lock for an approval or an effect, with the last version written under it."""

    written: Loaded | None = None


class Turns:
    """Locks by approval and by effect, removed when unused."""

    def __init__(self) -> None:
        # Threads share a store, but a lock belongs to one event loop.
        self._locks = WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakValueDictionary[str, SharedTurn]
        ]()

    async def take(
        self, held: AsyncExitStack, names: Iterable[str]
    ) -> dict[str, SharedTurn]:
        """Wait for the turns of these names; ``held`` releases them."""
        loop = asyncio.get_running_loop()
        locks = self._locks.setdefault(loop, WeakValueDictionary[str, SharedTurn]())
        # Sorted: one global order prevents deadlocks.
        turns = {name: locks.setdefault(name, SharedTurn()) for name in sorted(names)}
        try:
            async with asyncio.timeout(LONGEST_S):
                for turn in turns.values():
                    await held.enter_async_context(turn)
        except TimeoutError:
            # If the store hangs, changes must not queue up behind each other.
            await held.aclose()
        return turns
