"""Write an approval's next version atomically, with optimistic concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from pydantic_core import to_json

from twokey.gateway.approvals.record import Approval
from twokey.gateway.store.agent_load import FAILED_MS
from twokey.gateway.store.atomic_write import Loaded, Write, WriteMany
from twokey.gateway.store.audit_seals import event_texts
from twokey.gateway.store.connection import Connection, Reply, number, text
from twokey.gateway.store.handover import NOBODY, Takers
from twokey.gateway.store.keys import KEEP_MS, Keys
from twokey.gateway.store.next_version import (
    CHANGE,
    FENCED_CHANGE,
    moves,
    script_keys_of,
)
from twokey.gateway.store.precomputed import Beside, Precomputed
from twokey.gateway.store.resume_jobs import (
    Offer,
    job_of,
    offered,
    resume_job,
)
from twokey.gateway.store.script import Script
from twokey.gateway.store.templates import Moment

CHANGE_MANY = Script("change_many")

_OF_ONE = ("head", "pinned", "waiting", "rejections", "rejected", "failures")
"""Keys of each approval, in the order of `change_many.lua`."""


async def write(
    conn: Connection,
    keys: Keys,
    seen: Loaded,
    what: Write,
    takers: Takers = NOBODY,
) -> Loaded | None:
    """Write a change if nothing moved since it was read.

    ``takers`` are offered the job that it queues.

    Returns:
        What stands now; None when something moved, and nothing was written.

    Raises:
        StoreUnavailable: when it is not known to be written.
        LeaseLost: another holder has the lease now; nothing was written.
    """
    moved, after = moves(conn, keys, seen, what)
    # Most processes that decide run no agent.
    job = job_of(what.change) if takers else None
    # Of what is remembered the script compares only the items that move.
    is_known = seen.remembered is None or len(what.approval.items) == 1
    known = {what.approval.id: what.approval} if is_known else {}
    async with offered(takers, conn, keys, job, known) as offer:
        script = FENCED_CHANGE if what.is_fenced else CHANGE
        of_change = script_keys_of(keys, seen.approval)
        reply = await _sent(script, conn, of_change, to_json(moved), offer)
        offer.told(reply)
    if text(reply[0]) != "done":
        return None
    return Loaded(what.approval, now_ms=number(reply[1]), stored=after)


async def write_precomputed(
    conn: Connection,
    keys: Keys,
    what: Precomputed,
    moment: Moment,
    beside: Beside,
    make: Callable[[int], Loaded | None],
    takers: Takers = NOBODY,
) -> tuple[bytes, Callable[[], Loaded | None]] | None:
    """Write a change that was precomputed if nothing moved since then.

    ``takers`` are offered the job that it queues. The worker that takes it needs the
    record, which ``make`` returns for a time of the store; it is made while the script
    is on its way.

    Returns:
        The seal of what stands now, and what returns its record; None when something
        moved, and nothing was written.

    Raises:
        StoreUnavailable: when it is not known to be written.
        LeaseLost: another holder has the lease now; nothing was written.
    """
    # Its texts are as people read them; so are those of events and precedents.
    if conn.encrypts:
        return None
    job = resume_job(what.before) if takers and not what.is_fenced else None
    # Most processes that decide run no agent.
    if job is None:
        reply, seal = await what.write(conn, keys, moment, beside)
    else:
        known = dict[str, Approval]()
        async with offered(takers, conn, keys, job, known) as offer:
            if offer.is_taken:
                told, seal = what.told(conn, keys, moment, beside)
                # Not in the next turn of the loop, which sends the script.
                soon = asyncio.get_running_loop().call_soon
                soon(soon, _make_known, known, make, moment, seal)
                of_change = script_keys_of(keys, what.before)
                reply = await _sent(CHANGE, conn, of_change, told, offer)
                offer.told(reply)
            else:
                reply, seal = await what.write(conn, keys, moment, beside)
    return (seal, partial(make, number(reply[1]))) if text(reply[0]) == "done" else None


def _make_known(
    known: dict[str, Approval],
    make: Callable[[int], Loaded | None],
    moment: Moment,
    seal: bytes,
) -> None:
    """Make the record that is being written, if it is the one that was sealed."""
    found = make(moment.now_ms)
    # Of what is precomputed the script compares only the item that moves.
    if found is None or found.stored is None or len(found.approval.items) > 1:
        return
    if found.stored.seal == seal:
        known[found.approval.id] = found.approval


async def _sent(
    script: Script,
    conn: Connection,
    keys: Mapping[str, str],
    told: bytes,
    offer: Offer,
) -> list[Reply]:
    return await script(
        conn,
        **keys,
        thread=offer.thread,
        change=told,
        failed_ms=FAILED_MS,
        keep_ms=KEEP_MS,
        taker=offer.taker,
    )


async def write_many(
    conn: Connection, keys: Keys, seen: Mapping[str, Loaded], what: WriteMany
) -> bool:
    """Write changes of several approvals if nothing of any moved since it was read.

    Args:
        conn: the server.
        keys: of their shard.
        seen: what each was computed from, by its id.
        what: to write.

    Returns:
        False when something moved, and nothing was written.

    Raises:
        StoreUnavailable: when it is not known to be written.
    """
    read = [seen[one.approval.id] for one in what.writes]
    of_each = [script_keys_of(keys, one.approval) for one in read]
    pairs = zip(read, what.writes, strict=True)
    reply = await CHANGE_MANY(
        conn,
        **{name: key for name, key in of_each[0].items() if name not in _OF_ONE},
        records=[of_one[name] for of_one in of_each for name in _OF_ONE],
        failed_ms=FAILED_MS,
        keep_ms=KEEP_MS,
        events=event_texts(conn, keys, what.events),
        changes=[to_json(moves(conn, keys, *pair)[0]) for pair in pairs],
    )
    return text(reply[0]) == "done"
