"""Approval repository: open, read, change and list approvals.

Approvals of one tenant change atomically: read, compute, compare and write. Competing
changes of the same approval in one process take turns. Otherwise 200 concurrent changes
would lose nearly every comparison, and most would run out of attempts.

Changes of different approvals compete if their calls have the same effect: each one
changes the precedents of the others. Such a change waits for the others only after a
failed attempt. Turns only save attempts: every write is still compared with the state
that was read.

An attacker with write access to Redis can restore an older record, or a sealed change
that lost a race. A process that has seen a newer record rejects both. For records that
a process has not seen, the `Ledger` prevents a second execution.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import OrderedDict
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
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from pydantic_core import to_json

from keyturn.gateway import tracing
from keyturn.gateway.approvals import ending, timing
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.events import (
    WAITED_MS,
    Event,
    EventName,
    SecurityEvent,
    SecurityKind,
)
from keyturn.gateway.approvals.executing import NEVER_AGAIN, Attempt
from keyturn.gateway.approvals.record import Approval, Concerned, approval_of
from keyturn.gateway.errors import CorruptRecord, ForgedRecord, StoreUnavailable
from keyturn.gateway.failures import log_failure
from keyturn.gateway.metrics.report import outcome_of
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.wire import TurnRef
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.store.connection.connection import (
    Command,
    Reply,
    fields,
    milliseconds,
    text,
)
from keyturn.gateway.store.connection.listed_members import due_now, readable
from keyturn.gateway.store.keys import Keys, hash_of, keys_of_tenant, tenant_of_approval
from keyturn.gateway.store.limits.freezes import freezes_of
from keyturn.gateway.store.records import codec
from keyturn.gateway.store.records.approval_indexes import Listed, RunLists
from keyturn.gateway.store.records.atomic_write import (
    Loaded,
    Write,
    WriteMany,
    open_turn,
    run_change,
    spend_again,
    write,
)
from keyturn.gateway.store.records.codec import (
    QUARANTINE_SEAL,
    QUARANTINED,
    REPLAYED,
    WRONG_SEAL,
    RecordSeals,
    Stored,
)
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.encryption import decrypted_document, unpacked
from keyturn.gateway.store.sealing.event_seals import sealed_texts
from keyturn.gateway.store.sealing.sealing import Sealing

logger = logging.getLogger(__name__)

AT_ONCE = 20
"""Reads sent together. One by one, a list would need a round trip for each row; a
larger batch would delay clicks."""

MOST_CHANGED = 50
"""Limit of approvals in one step: the server is blocked while it runs."""

MOST_REVS: Final = 10_000
"""Number of approvals whose latest revision is remembered: about 3 MB."""

# A failed comparison nearly always means that another write succeeded. Sixteen failures
# in a row mean heavy contention, not a livelock, and the person can click again.
ATTEMPTS = 16
BUSY = "Too many changed this at once; nothing of yours was recorded. Please try again."

_PAUSE_S = 0.03
"""Growth of the longest pause with each attempt; at most 3 s altogether."""

LONGEST_S = 10.0
"""How long a change waits for its turn before it continues without one."""

HEARTBEAT = Script("heartbeat")

Found = TypeVar("Found")


class ApprovalStore(RunLists):
    """Approvals of all tenants.

    Args:
        sealing: seals of the store.
        lease_ms: lifetime of a claim without a heartbeat.

    Attributes:
        seals: seals of the records.
        open_turn: stores the approvals of one turn, once; see `atomic_write.open_turn`.
    """

    def __init__(self, sealing: Sealing, *, lease_ms: int) -> None:
        super().__init__(sealing)
        self.lease_ms = lease_ms
        self.seals = RecordSeals(self._conn)
        self._known = KnownRecords()
        self._turns = Turns()
        self.open_turn = partial(open_turn, self._conn, self.load)

    async def load(self, approval_id: str) -> Loaded | None:
        """Read an approval and the store's clock in one snapshot; None if missing.

        Raises:
            CorruptRecord: when the record is corrupt.
            ForgedRecord: when its seal is invalid; this quarantines the record.
        """
        tenant = tenant_of_approval(approval_id)
        if tenant is None:
            return None
        loaded, _ = await self.load_with(keys_of_tenant(tenant), approval_id)
        return loaded

    async def load_with(
        self, keys: Keys, approval_id: str, *more: Command
    ) -> tuple[Loaded | None, list[Reply]]:
        """Return the result of `load`, and replies to commands in the same snapshot.

        Args:
            keys: keys of the approval's tenant.
            approval_id: id of the approval.
            more: commands that read other data of the tenant.
        """
        async with self._noticed(keys):
            found, replies = await self._load_many(keys, [approval_id], more)
        return found.get(approval_id), replies

    async def concerned(
        self, keys: Keys, approval_ids: Sequence[str]
    ) -> list[Concerned | None]:
        """Return the people of each approval; None for one without a pending call."""
        if not approval_ids:
            return []
        fields = [["HGET", keys.head(one), codec.CONCERNED] for one in approval_ids]
        found = await self._conn.transaction(*fields)
        return [codec.concerned_in(one) for one in found]

    async def change(
        self, approval_id: str, compute: Callable[[Loaded], Awaitable[Found]]
    ) -> Found | None:
        """Compute the next version of an approval, and write it if nothing changed.

        All changes go through here: read, compute, compare and write. After a conflict
        the sequence starts again.

        Args:
            approval_id: id of the approval.
            compute: gets the record; returns the change to write, or a result that
                needs no write. It is called again after a conflict.

        Returns:
            The change that was written, or the result; None for a missing approval.

        Raises:
            StoreUnavailable: every attempt met a conflict; nothing was written.
            CorruptRecord: when the record is corrupt.
        """
        tenant = tenant_of_approval(approval_id)
        if tenant is None:
            return None

        async def one(read: Mapping[str, Loaded]) -> WriteMany | Found | None:
            if approval_id not in read:
                return None
            found = await compute(read[approval_id])
            return WriteMany([found]) if isinstance(found, Write) else found

        done = await self.change_many(keys_of_tenant(tenant), [approval_id], one)
        return cast("Found", done.writes[0]) if isinstance(done, WriteMany) else done

    async def change_many(
        self,
        keys: Keys,
        approval_ids: Iterable[str],
        compute: Callable[[Mapping[str, Loaded]], Awaitable[Found]],
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
        async with self._noticed(keys), AsyncExitStack() as held:
            own = await self._turns.take(held, here)
            # Otherwise each claim of a card with 56 calls would read and parse all 56.
            known = {**read}
            known |= {name: one.written for name, one in own.items() if one.written}
            for attempt in range(ATTEMPTS):
                await pause_before(attempt)
                # For one attempt: with the same records, a conflict would repeat.
                is_known = attempt == 0 and bool(known) and known.keys() >= {*here}
                loaded = known if is_known else (await self._load_many(keys, here))[0]
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
                # A result without a write needs a fresh read, since other processes may
                # have written.
                elif not is_known:
                    revs = {one: each.approval.rev for one, each in loaded.items()}
                    if not self._conn.confirmed_by or confirmed == revs:
                        return found
                    # The result may depend on a write that replicas lack. Read again
                    # after the confirmation: there may be a new master.
                    await self._conn.confirm(keys.expiry)
                    confirmed = revs
        raise StoreUnavailable(BUSY)

    async def _write(
        self,
        keys: Keys,
        seen: Mapping[str, Loaded],
        what: WriteMany,
        turns: Mapping[str, Turn],
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

    async def _load_many(
        self, keys: Keys, approval_ids: Sequence[str], more: Sequence[Command] = ()
    ) -> tuple[dict[str, Loaded], list[Reply]]:
        """Read the existing approvals of a list in one consistent snapshot.

        Returns the approvals by id, and the replies to ``more``, which are commands
        that read other data of the tenant in the same snapshot.

        Raises:
            ForgedRecord: when a record's seal is invalid, or when a newer or competing
                version is known.
            CorruptRecord: when a record is corrupt.
        """
        # Before the read: writes during the read may be newer.
        lasting = self._known.lasting(approval_ids)
        # One MULTI: the time belongs to the same snapshot.
        time, *replies = await self._conn.transaction(
            ["TIME"],
            *(
                command
                for one in approval_ids
                for command in (
                    ["HGETALL", keys.head(one)],
                    ["GET", keys.document(one)],
                )
            ),
            *more,
        )
        now_ms, found = milliseconds(time), dict[str, Loaded]()
        for n, one in enumerate(approval_ids):
            head, document = replies[2 * n : 2 * n + 2]
            if not (head and document):
                continue
            stored = Stored(fields(head), cast("bytes", document))
            parse = partial(codec.approval, one, stored, self.seals)
            approval = await aside(parse, [_text(stored.document)])
            if lasting[one].is_replayed(approval.rev, stored.seal):
                raise ForgedRecord(one, REPLAYED, is_replayed=True)
            # With replicas, another process's write may be unconfirmed.
            if not self._conn.confirmed_by:
                self._known.remember(approval, stored)
            found[one] = Loaded(approval, now_ms, stored=stored)
        return found, replies[2 * len(approval_ids) :]

    @asynccontextmanager
    async def _noticed(self, keys: Keys) -> AsyncGenerator[None]:
        """Quarantine a forged record found in the block, then raise the error again.

        Raises:
            ForgedRecord: the error of the block.
            StoreUnavailable: the seal may be valid under a secret unknown here.
        """
        try:
            yield
        except ForgedRecord as error:
            if error.why == WRONG_SEAL:
                await self._sealing.ensure_known(keys, approval=error.approval)
            # The record is refused even if the quarantine cannot be written.
            with suppress(StoreUnavailable):
                tenant, ref = await self.quarantine(keys, error.approval, why=error.why)
                found = SecurityEvent(
                    kind=SecurityKind.REPLAYED
                    if error.is_replayed
                    else SecurityKind.SEAL_WRONG,
                    tenant=tenant,
                    about="record",
                    agent=ref.run_ref.agent,
                    thread=ref.run_ref.thread,
                    approval=error.approval,
                )
                await self._sealing.security.report(keys, found)
            raise

    async def quarantine(
        self, keys: Keys, approval_id: str, *, why: str = ""
    ) -> tuple[str, TurnRef]:
        """End a corrupt approval: none of its items can be decided or run any more.

        Pending items are withdrawn and leave their windows, and deadlines are removed.
        The end is announced, and the thread is resumed if its name is legible. A record
        that was quarantined before stays unchanged. ``why`` is the reason in words.
        Returns the tenant and the turn, as far as they are legible.
        """
        raw_head, document, time = await self._conn.transaction(
            ["HGETALL", keys.head(approval_id)],
            ["GET", keys.document(approval_id)],
            ["TIME"],
        )
        head, now_ms = fields(raw_head), milliseconds(time)
        # The sweep and a click may find the record at once; announce it and resume the
        # thread only once.
        is_first = not self.seals.is_quarantined(approval_id, head)
        # Placeholder names match no existing keys, so the script changes no other data.
        tenant, ref = "", TurnRef(agent="", thread="", message_id="")
        with suppress(ForgedRecord):
            plain = decrypted_document(
                self._conn, approval_id, head, cast("bytes", document or b"")
            )
            tenant, ref = codec.whose(plain) or (tenant, ref)
        run_ref = ref.run_ref
        mended: dict[str, str] = {}
        listed = await self.open_of_run(keys, run_ref)
        if Listed(approval_id, ref.ns) in listed:
            # The head may have lost the names of its run and turn, and both would count
            # the approval as open forever. The run lists it, so the document names it.
            turn = keys.turn(digest.turn_key(tenant=keys.tenant, **ref.names))
            mended["run"] = hash_of(keys.run(run_ref)) + ref.ns.encode().hex()
            mended["turn"] = hash_of(turn)
        event = Event(
            name=EventName.RECORD_QUARANTINED,
            tenant=tenant,
            agent=run_ref.agent,
            thread=run_ref.thread,
            approval=approval_id,
            reason=why,
        )
        job = Job.to_resume(tenant, run_ref.agent, run_ref.thread)
        at = str(now_ms)
        mark = {
            QUARANTINED: at,
            QUARANTINE_SEAL: self.seals.of_moment(approval_id, QUARANTINED, at).hex(),
        }
        states = {
            str(i): s for i, s in ending.quarantined_states(codec.states(head)).items()
        }
        if self._conn.ledger is not None:
            # Before the record ends: a sealed earlier version, restored later, must not
            # run calls that were announced as ended.
            spent = [Attempt(approval_id, int(i), NEVER_AGAIN) for i in states]
            await self._conn.ledger.spend(spent, now_ms=now_ms)
        moved = {f"{i}:s": state for i, state in states.items()}
        since = dict.fromkeys((f"{i}:t" for i in states), at)
        change: dict[str, object] = {
            "id": approval_id,
            # Compared as text with the stored value, even if that is malformed.
            "rev": head.get("rev", b"").decode("utf-8", "replace"),
            "seen_ms": now_ms,
            "fields": {**moved, **since, **mark, **mended},
            "states": states,
            # Score 0 removes every timer; otherwise each would find the record again.
            "set": [(kind, 0) for kind in timing.TimerKind],
            "events": sealed_texts(self._conn, keys, [event] * is_first),
            "job": job.model_dump_json() if run_ref.thread and is_first else "",
            # No queues: the names of the reviewers may be the corrupt part. The
            # approval stays in its queues until they expire, but is unreadable.
        }
        place = approval_id, ref.agent, run_ref.thread
        await run_change(self._conn, keys, [place], [to_json(change), b""])
        return tenant, ref

    async def heartbeat(self, approval_id: str, index: int, fence: int) -> bool:
        """Renew a claim; False if it no longer belongs to this fence."""
        tenant = tenant_of_approval(approval_id)
        if tenant is None:
            return False
        keys = keys_of_tenant(tenant)
        reply = await HEARTBEAT(
            self._conn,
            head=keys.head(approval_id),
            expiry=keys.expiry,
            id=approval_id,
            index=index,
            fence=fence,
            lease_ms=self.lease_ms,
        )
        return text(reply[0]) == "kept"

    async def load_each(self, approval_ids: Iterable[str]) -> list[Loaded]:
        """Return the existing approvals, without corrupt ones."""
        return await read_each(self.load, approval_ids)

    async def overdue(self, keys: Keys, limit: int) -> list[str]:
        """Return ids of approvals with an overdue deadline, earliest first."""
        return await due_now(self._conn, keys.expiry, limit, keys.unlisted)

    async def scheduled(self, keys: Keys) -> list[str]:
        """Return ids of approvals with a deadline, earliest first."""
        reply = await self._conn.command("ZRANGE", keys.expiry, 0, -1)
        return readable(reply, keys.unlisted)

    async def forget_overdue(self, keys: Keys, approval_id: str) -> None:
        """Remove the deadline of an approval that is gone."""
        await self._conn.command("ZREM", keys.expiry, keys.listed(approval_id))

    async def unfinished_of_run(self, keys: Keys, run_ref: RunRef) -> list[str]:
        """Return the ids of a run's approvals with an outstanding automatic step."""
        ids = [one.id for one in await self.open_of_run(keys, run_ref)]
        if not ids:
            return []
        times = await self._conn.command("ZMSCORE", keys.expiry, *map(keys.listed, ids))
        rows = zip(ids, cast("list[Reply]", times), strict=True)
        return [approval_id for approval_id, at in rows if at is not None]

    async def has_open(self, keys: Keys, run_ref: RunRef) -> bool:
        """Return whether a run has an open call, with or without a deadline."""
        # Not from the index of deadlines: a call in doubt is open without a deadline.
        return bool(await self.open_of_run(keys, run_ref))


async def read_each(
    load: Callable[[str], Awaitable[Loaded | None]], approval_ids: Iterable[str]
) -> list[Loaded]:
    """Return the existing approvals in order, without corrupt ones.

    Args:
        load: reads one approval.
        approval_ids: ids of the approvals.
    """

    async def sound(approval_id: str) -> Loaded | None:
        try:
            return await load(approval_id)
        except CorruptRecord as error:
            log_failure(logger, error, "record.corrupt")
        return None

    wanted, found = [*approval_ids], list[Loaded]()
    for start in range(0, len(wanted), AT_ONCE):
        read = await asyncio.gather(*map(sound, wanted[start : start + AT_ONCE]))
        found += [one for one in read if one is not None]
    return found


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


class Lasting(NamedTuple):
    """The latest known revision of an approval; it cannot go back.

    Two competing changes of one revision are both sealed, and both are sent to the
    server. So the seal counts as well; it is None if unknown.
    """

    rev: int = 0
    seal: bytes | None = None

    def is_replayed(self, rev: int, seal: bytes) -> bool:
        """Return whether a sealed record is older, or lost the race."""
        return rev < self.rev or (rev == self.rev and self.seal not in (None, seal))


NOTHING: Final = Lasting()


class KnownRecords:
    """The revisions of approvals that this process recently read or wrote."""

    def __init__(self) -> None:
        self._lasting = OrderedDict[str, Lasting]()
        # Event loops in several threads share one store.
        self._lock = threading.Lock()

    def lasting(self, approval_ids: Iterable[str]) -> dict[str, Lasting]:
        """Return the latest known revisions of approvals."""
        return {one: self._lasting.get(one, NOTHING) for one in approval_ids}

    def remember(self, approval: Approval, stored: Stored) -> None:
        """Remember a version that can no longer be lost."""
        with self._lock:
            was = self._lasting.pop(approval.id, NOTHING)
            is_newer = approval.rev > was.rev
            now = Lasting(approval.rev, stored.seal) if is_newer else was
            self._lasting[approval.id] = now
            if len(self._lasting) > MOST_REVS:
                self._lasting.popitem(last=False)


class Turn(asyncio.Lock):
    """Lock of an approval or an effect, with the last version written under it."""

    written: Loaded | None = None


class Turns:
    """Turns by approval and by effect, removed when unused."""

    def __init__(self) -> None:
        # Threads share a store, but a lock belongs to one event loop.
        self._turns = WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakValueDictionary[str, Turn]
        ]()

    async def take(self, held: AsyncExitStack, names: Iterable[str]) -> dict[str, Turn]:
        """Wait for the turns of these names; ``held`` releases them."""
        loop = asyncio.get_running_loop()
        turns = self._turns.setdefault(loop, WeakValueDictionary[str, Turn]())
        # Sorted: one global order prevents deadlocks.
        taken = {name: turns.setdefault(name, Turn()) for name in sorted(names)}
        try:
            async with asyncio.timeout(LONGEST_S):
                for turn in taken.values():
                    await held.enter_async_context(turn)
        except TimeoutError:
            # If the store hangs, changes must not queue up behind each other.
            await held.aclose()
        return taken
