"""Change several approvals of one shard in one step: all of them or none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar, cast

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store import codec
from twokey.gateway.store.atomic_write import Loaded, WriteMany
from twokey.gateway.store.attempts import ATTEMPTS, BUSY, pause_before
from twokey.gateway.store.connection import Connection, fields, milliseconds
from twokey.gateway.store.keys import Keys, shard_of_approval
from twokey.gateway.store.known_records import KnownRecords
from twokey.gateway.store.record_seals import Stored
from twokey.gateway.store.writing import write_many

MOST_CHANGED = 50
"""How many approvals may change in one step: the server does nothing else meanwhile."""

Found = TypeVar("Found")


async def load_many(
    conn: Connection, known: KnownRecords, keys: Keys, approval_ids: Sequence[str]
) -> dict[str, Loaded]:
    """Read those approvals of a shard that are there, as of one moment.

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
            for command in (["HGETALL", keys.head(one)], ["GET", keys.pinned(one)])
        ),
        ["TIME"],
    )
    now_ms, found = milliseconds(time), dict[str, Loaded]()
    rows = [
        (approval_id, Stored(fields(head), cast("bytes", pinned)))
        for approval_id, head, pinned in zip(
            approval_ids, replies[::2], replies[1::2], strict=True
        )
        if head and pinned
    ]
    schemas = await known.schemas.read(
        keys, (one for _, stored in rows for one in codec.digests(stored.head))
    )
    for approval_id, stored in rows:
        found[approval_id] = known.parsed(
            approval_id,
            stored,
            schemas,
            now_ms=now_ms,
            lasting=lasting[approval_id],
            # With replicas, what another process wrote may not be confirmed yet.
            is_lasting=not conn.confirmed_by,
        )
    return found


async def change_many(
    conn: Connection,
    known: KnownRecords,
    keys: Keys,
    approval_ids: Iterable[str],
    compute: Callable[[Mapping[str, Loaded]], Awaitable[Found]],
) -> Found:
    """Compute the next versions of several approvals, and write all or none.

    What `ApprovalStore.change` does for one: read, compute, compare and write; and
    again from the reading when something moved in any of them in between.

    Args:
        conn: the server.
        known: what this process read or wrote of them before.
        keys: of their shard.
        approval_ids: of the approvals, at most `MOST_CHANGED`.
        compute: given what was read, by id and without those that are not there,
            returns a `WriteMany`, or an answer instead. It is called again when
            something moved.

    Returns:
        What was written, or the answer.

    Raises:
        StoreUnavailable: something moved all the time; nothing was written.
        CorruptRecord: when a record is corrupt.
        ValueError: when there are too many.
    """
    wanted = list(dict.fromkeys(approval_ids))
    if len(wanted) > MOST_CHANGED:
        raise ValueError(f"{len(wanted)} approvals cannot be changed in one step")
    # One of another shard is not there, as one of another tenant is not theirs.
    here = [one for one in wanted if shard_of_approval(one) == keys.shard]
    confirmed: dict[str, int] | None = None
    for attempt in range(ATTEMPTS):
        await pause_before(attempt)
        loaded = await load_many(conn, known, keys, here)
        found = await compute(loaded)
        if not isinstance(found, WriteMany):
            revs = {one: each.approval.rev for one, each in loaded.items()}
            if not conn.confirmed_by or confirmed == revs:
                return found
            # As `ApprovalStore.change` does with an answer.
            await conn.confirm(keys.expiry)
            confirmed = revs
        elif await write_many(conn, keys, loaded, found):
            for one in here:
                known.forget(one)
            return found
    raise StoreUnavailable(BUSY)
