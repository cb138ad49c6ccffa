"""Call the Lua scripts; each function's signature is its script's contract.

A script's header names its KEYS and then its ARGV, as the parameters here do.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.store.connection import Argument, Connection, Reply
from gateway.store.script import Script

OPEN = Script("open", is_fenced=True)
DECIDE = Script("decide")
EXPIRE = Script("expire")
SUPERSEDE = Script("supersede", is_fenced=True)
CLAIM = Script("claim", is_fenced=True)
FINISH = Script("finish")
HEARTBEAT = Script("heartbeat")
RESERVE = Script("reserve")
TOTALS = Script("totals")
FREEZE = Script("freeze")
STANDING = Script("standing")
RING = Script("ring")
RETIME = Script("retime")
NOTE = Script("note")
PUT_ASIDE = Script("put_aside")
REMEMBER = Script("remember")
ASK = Script("ask")


async def open_turn(
    conn: Connection,
    *,
    turn: str,
    run: str,
    expiry: str,
    outbox: str,
    audit: str,
    reservation: str,
    frozen: str,
    waiting: str,
    asked: str,
    rejected: str,
    timers: str,
    undrawn: str,
    records: Sequence[str],
    keep_ms: int,
    verdicts: str,
    events: str,
    approvals: str,
    names: str,
    limits: str,
    counted: str,
    refused: str,
    is_reserved: bool,
    noticed: str,
) -> list[Reply]:
    """Run open.lua."""
    of_turn = [turn, run, expiry, outbox, audit, reservation]
    of_agent = [frozen, waiting, asked, rejected, timers, undrawn]
    keys = [*of_turn, *of_agent, *records]
    written: list[Argument] = [keep_ms, verdicts, events, approvals]
    held: list[Argument] = [names, limits, counted, refused, int(is_reserved), noticed]
    return await OPEN.run(conn, keys, [*written, *held])


async def decide(
    conn: Connection,
    *,
    head: str,
    blobs: str,
    expiry: str,
    outbox: str,
    audit: str,
    jobs: str,
    waiting: str,
    refusals: str,
    rejected: str,
    frozen: str,
    timers: str,
    id: str,
    index: int,
    rev: int,
    state_seen: str,
    hash_seen: bytes,
    version: int,
    state: str,
    hash: bytes,
    detail: str,
    lapse_ms: int,
    keep_ms: int,
    events: str,
    job: str,
    uses: str,
    totals: str,
    refusal: str,
    pause: str,
    expires: int,
    latest: int,
    rings: str,
) -> list[Reply]:
    """Run decide.lua."""
    keys = [head, blobs, expiry, outbox, audit, jobs]
    keys += [waiting, refusals, rejected, frozen, timers]
    seen: list[Argument] = [id, index, rev, state_seen, hash_seen]
    after: list[Argument] = [version, state, hash, detail, lapse_ms, keep_ms]
    told: list[Argument] = [events, job, uses, totals, refusal, pause]
    timed: list[Argument] = [expires, latest, rings]
    return await DECIDE.run(conn, keys, [*seen, *after, *told, *timed])


async def expire(
    conn: Connection,
    *,
    head: str,
    blobs: str,
    expiry: str,
    outbox: str,
    audit: str,
    jobs: str,
    waiting: str,
    id: str,
    rev: int,
    expired: str,
    lapsed: str,
    doubted: str,
    job: str,
    keep_ms: int,
) -> list[Reply]:
    """Run expire.lua."""
    keys = [head, blobs, expiry, outbox, audit, jobs, waiting]
    ends: list[Argument] = [expired, lapsed, doubted, job, keep_ms]
    return await EXPIRE.run(conn, keys, [id, rev, *ends])


async def supersede(
    conn: Connection,
    *,
    head: str,
    blobs: str,
    expiry: str,
    outbox: str,
    audit: str,
    waiting: str,
    id: str,
    rev: int,
    ends: str,
    keep_ms: int,
) -> list[Reply]:
    """Run supersede.lua."""
    keys = [head, blobs, expiry, outbox, audit, waiting]
    return await SUPERSEDE.run(conn, keys, [id, rev, ends, keep_ms])


async def claim(
    conn: Connection,
    *,
    head: str,
    expiry: str,
    outbox: str,
    audit: str,
    frozen: str,
    id: str,
    index: int,
    hash: bytes,
    owner: str,
    lease_ms: int,
    judged: str,
    started: str,
    doubtful: str,
    names: str,
) -> list[Reply]:
    """Run claim.lua."""
    keys = [head, expiry, outbox, audit, frozen]
    who: list[Argument] = [id, index, hash, owner, lease_ms, judged]
    return await CLAIM.run(conn, keys, [*who, started, doubtful, names])


async def finish(
    conn: Connection,
    *,
    head: str,
    blobs: str,
    expiry: str,
    outbox: str,
    audit: str,
    failures: str,
    id: str,
    index: int,
    fence: int,
    state: str,
    result: str,
    keep_ms: int,
    events: str,
    failed_ms: int,
    lapse_ms: int,
    late: str,
) -> list[Reply]:
    """Run finish.lua."""
    keys = [head, blobs, expiry, outbox, audit, failures]
    claimed: list[Argument] = [id, index, fence]
    ended: list[Argument] = [state, result, keep_ms, events, failed_ms, lapse_ms]
    ended.append(late)
    return await FINISH.run(conn, keys, [*claimed, *ended])


async def heartbeat(
    conn: Connection,
    *,
    head: str,
    expiry: str,
    id: str,
    index: int,
    fence: int,
    lease_ms: int,
) -> list[Reply]:
    """Run heartbeat.lua."""
    return await HEARTBEAT.run(conn, [head, expiry], [id, index, fence, lease_ms])


async def reserve(
    conn: Connection,
    *,
    turn: str,
    reservation: str,
    windows: Sequence[str],
    uses: str,
    hold_ms: int,
) -> list[Reply]:
    """Run reserve.lua."""
    return await RESERVE.run(conn, [turn, reservation, *windows], [uses, hold_ms])


async def totals(
    conn: Connection, *, blobs: str, windows: Sequence[str], index: int, uses: str
) -> list[Reply]:
    """Run totals.lua."""
    return await TOTALS.run(conn, [blobs, *windows], [index, uses])


async def freeze(
    conn: Connection,
    *,
    frozen: str,
    outbox: str,
    audit: str,
    verb: str,
    names: str,
    body: str,
    events: str,
) -> list[Reply]:
    """Run freeze.lua."""
    return await FREEZE.run(conn, [frozen, outbox, audit], [verb, names, body, events])


async def standing(
    conn: Connection,
    *,
    turn: str,
    facts: str,
    frozen: str,
    waiting: str,
    asked: str,
    failures: str,
    refusals: str,
    rejected: str,
) -> list[Reply]:
    """Run standing.lua."""
    of_thread = [turn, facts, frozen]
    of_agent = [waiting, asked, failures, refusals, rejected]
    return await STANDING.run(conn, [*of_thread, *of_agent], [])


async def ring(
    conn: Connection,
    *,
    head: str,
    blobs: str,
    timers: str,
    outbox: str,
    audit: str,
    id: str,
    kind: str,
    event: str,
) -> list[Reply]:
    """Run ring.lua."""
    return await RING.run(conn, [head, blobs, timers, outbox, audit], [id, kind, event])


async def put_aside(
    conn: Connection,
    *,
    head: str,
    expiry: str,
    timers: str,
    outbox: str,
    audit: str,
    jobs: str,
    blobs: str,
    waiting: str,
    id: str,
    kinds: str,
    event: str,
    job: str,
    keep_ms: int,
) -> list[Reply]:
    """Run put_aside.lua."""
    keys = [head, expiry, timers, outbox, audit, jobs, blobs, waiting]
    return await PUT_ASIDE.run(conn, keys, [id, kinds, event, job, keep_ms])


async def retime(
    conn: Connection,
    *,
    head: str,
    blobs: str,
    expiry: str,
    timers: str,
    outbox: str,
    audit: str,
    waiting: str,
    id: str,
    rev: int,
    expires: int,
    taken: str,
    rings: str,
    event: str,
    keep_ms: int,
) -> list[Reply]:
    """Run retime.lua."""
    keys = [head, blobs, expiry, timers, outbox, audit, waiting]
    after: list[Argument] = [expires, taken, rings, event, keep_ms]
    return await RETIME.run(conn, keys, [id, rev, *after])


async def note(
    conn: Connection,
    *,
    notice: str,
    outbox: str,
    audit: str,
    failures: str,
    field: str,
    body: str,
    once: bool,
    keep_ms: int,
    events: str,
    failed: str,
    failed_ms: int,
) -> list[Reply]:
    """Run note.lua."""
    keys = [notice, outbox, audit, failures]
    written: list[Argument] = [field, body, int(once), keep_ms, events]
    return await NOTE.run(conn, keys, [*written, failed, failed_ms])


async def ask(
    conn: Connection,
    *,
    seen: str,
    facts: str,
    jobs: str,
    before: str,
    after: str,
    job: str,
    seen_ms: int,
) -> list[Reply]:
    """Run ask.lua."""
    return await ASK.run(conn, [seen, facts, jobs], [before, after, job, seen_ms])


async def remember(
    conn: Connection, *, facts: str, before: str, after: str, why: str, keep_ms: int
) -> list[Reply]:
    """Run remember.lua."""
    return await REMEMBER.run(conn, [facts], [before, after, why, keep_ms])
