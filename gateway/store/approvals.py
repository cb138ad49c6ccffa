"""Keep approvals: open a turn's, read one, write a decision, end what waited."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from gateway.approvals import digest, timing
from gateway.approvals.changes import Change
from gateway.approvals.events import Event
from gateway.approvals.lifecycle import ItemState
from gateway.approvals.notice import Notice
from gateway.approvals.record import Approval, Home
from gateway.errors import NewerRecord, UnreadableRecord
from gateway.failures import log_failure
from gateway.store import codec, opening, scripts
from gateway.store.attention import ASKED_MS, Aftermath
from gateway.store.connection import Connection, Reply, fields, number, text
from gateway.store.jobs import Job
from gateway.store.keys import RETENTION, Keys, shard_of_approval
from gateway.store.opening import Admission, Listed, Opened
from gateway.store.pending import PendingIndex
from gateway.store.windows import Use, as_rows

logger = logging.getLogger(__name__)

_KEEP_MS = int(RETENTION.total_seconds() * 1000)


@dataclass(frozen=True)
class Loaded:
    """An approval as it stood at ``now_ms`` of the store's clock."""

    approval: Approval
    now_ms: int


@dataclass(frozen=True)
class Judged:
    """What an item uses of which windows, and what they came to when it was judged."""

    uses: Sequence[Use]
    totals: Mapping[str, int]


Committed = Literal["done", "gone", "expired", "moved"]
Ended = Literal["done", "gone", "moved"]


class ApprovalStore:
    """Approvals of all shards."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._pending = PendingIndex(conn)

    async def open_turn(
        self,
        keys: Keys,
        turn_key: str,
        approvals: Sequence[Approval],
        *,
        verdicts: str,
        events: Sequence[Event],
        thread: tuple[str, str],
        admission: Admission,
        notices: Sequence[Notice] = (),
    ) -> Opened | None:
        """Store the approvals of one turn, their events and the verdicts, once.

        Args:
            keys: of the tenant's shard.
            turn_key: the same for every submit of this turn.
            approvals: new records; their deadlines are set by the store's clock.
            verdicts: JSON to answer this turn with, now and again.
            events: what to announce.
            thread: agent and thread id.
            admission: what has to hold still.
            notices: new notices of what runs unasked.

        Returns:
            None when something moved since the calls were judged: judge them again.
        """
        own = Home(agent=thread[0], thread=thread[1])
        if approvals:
            await self._pending.add(keys, admission.tenant, thread[0])
        reply = await scripts.OPEN(
            self._conn,
            turn=keys.turn(turn_key),
            run=keys.run(admission.tenant, admission.home or own),
            expiry=keys.expiry,
            outbox=keys.outbox,
            audit=keys.audit,
            reservation=keys.reservation(turn_key, as_rows(admission.reserved)),
            frozen=keys.frozen(admission.tenant),
            waiting=keys.waiting(admission.tenant, thread[0]),
            asked=keys.asked(admission.tenant, thread[0]),
            rejected=keys.rejected(admission.tenant, *thread),
            timers=keys.timers,
            undrawn=keys.undrawn(admission.tenant),
            records=[
                key
                for approval in approvals
                for key in (keys.head(approval.id), keys.blobs(approval.id))
            ]
            + [keys.notice(notice.id) for notice in notices],
            keep_ms=_KEEP_MS,
            verdicts=verdicts,
            events=_texts(events),
            approvals=json.dumps(
                [opening.row(approval, admission.held) for approval in approvals]
            ),
            names=json.dumps(admission.names),
            limits=json.dumps(
                {
                    "waiting": admission.waiting,
                    "asked": admission.asked,
                    "asked_ms": ASKED_MS,
                }
            ),
            counted=as_rows(admission.counted),
            refused=as_rows(admission.refused),
            is_reserved=bool(admission.reserved),
            noticed=json.dumps([notice.model_dump_json() for notice in notices]),
        )
        match text(reply[0]):
            case "opened":
                return Opened(verdicts, older=_listed(reply[1]))
            case "exists":
                return Opened(text(reply[1]))
            case _:
                return None

    async def load(self, approval_id: str) -> Loaded | None:
        """Read one approval and the store's clock, as of one moment; None: unknown.

        Raises:
            UnreadableRecord: when the record is not what we wrote.
        """
        shard = shard_of_approval(approval_id)
        if shard is None:
            return None
        keys = Keys(shard)
        head, blobs, time = await self._conn.together(
            ["HGETALL", keys.head(approval_id)],
            ["HGETALL", keys.blobs(approval_id)],
            ["TIME"],
        )
        if not head or not blobs:
            return None
        approval = codec.approval(approval_id, fields(head), fields(blobs))
        return Loaded(approval, now_ms=_milliseconds(time))

    async def load_each(
        self, approval_ids: Iterable[str], *, skips_newer: bool = True
    ) -> list[Loaded]:
        """Read those approvals that are there, without those that we cannot read."""
        found: list[Loaded] = []
        for approval_id in approval_ids:
            try:
                loaded = await self.load(approval_id)
            except NewerRecord as error:
                if not skips_newer:
                    raise
                logger.warning("record.newer %s", error)
                continue
            except UnreadableRecord as error:
                log_failure(logger, error, "record.unreadable")
                continue
            if loaded is not None:
                found.append(loaded)
        return found

    async def commit(
        self,
        before: Approval,
        change: Change,
        *,
        job: Job | None,
        lapse_ms: int,
        judged: Judged | None = None,
        aftermath: Aftermath | None = None,
    ) -> Committed:
        """Write a decision if nothing moved since ``before`` was read.

        The state change, its events, its audit entries and the resume job are one
        step, and so is what the item has reserved.

        Args:
            before: what was read.
            change: what follows.
            job: brings the agent back.
            lapse_ms: how long an authorization may wait to be used.
            judged: what the item uses from now on; None leaves what it has. It is not
                written when a window holds more than was judged by.
            aftermath: what a rejection brings with it.
        """
        keys = _keys_of(before)
        item = change.item
        seen = before.items[item.index]
        reply = await scripts.DECIDE(
            self._conn,
            head=keys.head(before.id),
            blobs=keys.blobs(before.id),
            expiry=keys.expiry,
            outbox=keys.outbox,
            audit=keys.audit,
            jobs=keys.jobs,
            waiting=keys.waiting(before.tenant, before.agent),
            refusals=keys.refusals(before.tenant, before.agent),
            rejected=keys.rejected(before.tenant, before.agent, before.thread),
            frozen=keys.frozen(before.tenant),
            timers=keys.timers,
            id=before.id,
            index=item.index,
            rev=before.rev,
            state_seen=seen.state,
            hash_seen=digest.to_raw(seen.action_hash),
            version=change.approval.version,
            state=item.state,
            hash=digest.to_raw(item.action_hash),
            detail=codec.detail(item),
            lapse_ms=lapse_ms,
            keep_ms=_KEEP_MS,
            events=_texts(change.events),
            job=job.model_dump_json() if job else "",
            uses=as_rows(judged.uses) if judged else "",
            totals=_totals(judged),
            refusal=aftermath.refusal_text if aftermath else "",
            pause=aftermath.pause_text if aftermath else "",
            expires=change.approval.expires_at_ms,
            latest=change.approval.latest_at_ms,
            rings=json.dumps(timing.timers(before, change.approval)),
        )
        return cast("Committed", text(reply[0]))

    async def overdue(self, keys: Keys, limit: int, *, skip: int = 0) -> list[str]:
        """Return ids of approvals in which something is overdue, earliest first.

        ``skip`` leaves out the first ones, which the caller has to leave alone.
        """
        now_ms = _milliseconds(await self._conn.command("TIME"))
        reply = await self._conn.command(
            "ZRANGEBYSCORE", keys.expiry, 0, now_ms, "LIMIT", skip, limit
        )
        return _ids(reply)

    async def scheduled(self, keys: Keys) -> list[str]:
        """Return ids of approvals in which something is still to happen, by time.

        Those of all tenants of the shard are among them.
        """
        reply = await self._conn.command("ZRANGE", keys.expiry, 0, -1)
        return _ids(reply)

    async def expire(
        self,
        before: Approval,
        *,
        expired: Mapping[int, Event],
        lapsed: Mapping[int, Event],
        doubted: Mapping[int, Event],
        job: Job,
    ) -> tuple[Ended, int]:
        """End what is overdue by the store's clock; return how many items ended."""
        keys = _keys_of(before)
        reply = await scripts.EXPIRE(
            self._conn,
            head=keys.head(before.id),
            blobs=keys.blobs(before.id),
            expiry=keys.expiry,
            outbox=keys.outbox,
            audit=keys.audit,
            jobs=keys.jobs,
            waiting=keys.waiting(before.tenant, before.agent),
            id=before.id,
            rev=before.rev,
            expired=_by_index(expired),
            lapsed=_by_index(lapsed),
            doubted=_by_index(doubted),
            job=job.model_dump_json(),
            keep_ms=_KEEP_MS,
        )
        return _ended(reply)

    async def supersede(
        self, before: Approval, ends: Mapping[int, tuple[ItemState, Event]]
    ) -> tuple[Ended, int]:
        """End waiting items without a decision; return how many ended."""
        keys = _keys_of(before)
        reply = await scripts.SUPERSEDE(
            self._conn,
            head=keys.head(before.id),
            blobs=keys.blobs(before.id),
            expiry=keys.expiry,
            outbox=keys.outbox,
            audit=keys.audit,
            waiting=keys.waiting(before.tenant, before.agent),
            id=before.id,
            rev=before.rev,
            ends=json.dumps(
                {
                    str(index): [state.value, event.model_dump_json()]
                    for index, (state, event) in ends.items()
                }
            ),
            keep_ms=_KEEP_MS,
        )
        return _ended(reply)

    async def forget_overdue(self, keys: Keys, approval_id: str) -> None:
        """Drop the deadline of an approval that is kept no longer."""
        await self._conn.command("ZREM", keys.expiry, approval_id)

    async def of_run(self, keys: Keys, tenant: str, home: Home) -> list[Listed]:
        """Return a run's approvals, oldest first, those of agents inside included."""
        reply = await self._conn.command("ZRANGE", keys.run(tenant, home), 0, -1)
        return _listed(reply)

    async def latest_of_run(
        self, keys: Keys, tenant: str, home: Home, *, limit: int
    ) -> list[Listed]:
        """Return the newest of a run's approvals, oldest first."""
        run = keys.run(tenant, home)
        return _listed(await self._conn.command("ZRANGE", run, -limit, -1))

    async def unfinished(self, keys: Keys, listed: Sequence[Listed]) -> list[str]:
        """Return the ids of those in which something is still to happen by itself."""
        if not listed:
            return []
        ids = [one.id for one in listed]
        times = await self._conn.command("ZMSCORE", keys.expiry, *ids)
        rows = zip(ids, cast("list[Reply]", times), strict=True)
        return [approval_id for approval_id, at in rows if at is not None]

    async def has_open(self, keys: Keys, tenant: str, home: Home) -> bool:
        """Say whether a call of a run is open, also if nothing happens by itself."""
        listed = await self._conn.command("EXISTS", keys.open_of_run(tenant, home))
        if listed:
            return True
        # A version without that list may have opened it.
        return bool(await self.unfinished(keys, await self.of_run(keys, tenant, home)))


def _keys_of(approval: Approval) -> Keys:
    shard = shard_of_approval(approval.id)
    if shard is None:
        raise ValueError(f"{approval.id!r} is not an approval id")
    return Keys(shard)


def _totals(judged: Judged | None) -> str:
    if judged is None:
        return "[]"
    return json.dumps([str(judged.totals[use.name]) for use in judged.uses])


def _ended(reply: list[Reply]) -> tuple[Ended, int]:
    word = cast("Ended", text(reply[0]))
    return word, number(reply[1]) if word == "done" else 0


def _texts(events: Sequence[Event]) -> str:
    return json.dumps([event.model_dump_json() for event in events])


def _by_index(events: Mapping[int, Event]) -> str:
    return json.dumps(
        {str(index): event.model_dump_json() for index, event in events.items()}
    )


def _milliseconds(reply: Reply) -> int:
    seconds, micros = cast("tuple[bytes | int, bytes | int]", reply)
    return int(seconds) * 1000 + int(micros) // 1000


def _listed(reply: Reply) -> list[Listed]:
    return [Listed.read(member) for member in _ids(reply)]


def _ids(reply: Reply) -> list[str]:
    return [text(member) for member in cast("list[bytes]", reply or [])]
