"""Record a history of many processes on real servers, and add what only time does."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from tests.linearizability.approval_model import CLAIMED
from tests.linearizability.client import EXPIRES_S
from tests.linearizability.history import Operation, read_history
from tests.linearizability.load import LEASE_MS, STEPS, USERS, serve
from tests.races.asking_processes import asking

PROCESSES = 4
PER_ROUND = 60
"""Approvals that all processes use before any of them goes on to the next ones."""
PER_ROUND_OPERATIONS = PER_ROUND * PROCESSES * USERS * STEPS
"""About so many; each of them leaves out some and adds others."""


def keys(seed: int) -> Iterator[str]:
    """Return keys of approvals: most need one person and have time."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    for number in itertools.count(1):
        yield f"{dice.choice('1112')}{dice.choice('lllshh')}-{number}"


async def record(
    url: str, folder: Path, *, operations: int, seed: int = 0
) -> list[Operation]:
    """Use approvals from processes until this many operations are recorded."""
    named, rounds = keys(seed), -(-operations // PER_ROUND_OPERATIONS)
    async with AsyncExitStack() as opened:
        processes = [
            await opened.enter_async_context(
                asking(serve, url, f"p{at}", str(folder), seed)
            )
            for at in range(PROCESSES)
        ]
        for _ in range(rounds):
            used = " ".join(itertools.islice(named, PER_ROUND))
            for one in processes:
                one.go(used)
            await asyncio.gather(*(one.answer() for one in processes))
    return await asyncio.to_thread(_all_of, folder)


def _all_of(folder: Path) -> list[Operation]:
    return [one for path in folder.glob("*.jsonl") for one in read_history(path)]


def with_time(history: Iterable[Operation]) -> list[Operation]:
    """Return a history with the automatic effects of time.

    An approval expires, and an executor without heartbeats loses its claim. Both happen
    at some moment after they may, or never.
    """
    found = list(history)
    submits: dict[str, int] = {}
    for one in found:
        if one.name == "submit":
            submits[one.key] = min(one.called, submits.get(one.key, one.called))
    timed = [
        Operation(key, name, called=at + EXPIRES_S * 10**9)
        for name in ("late", "expire")
        for key, at in submits.items()
        if key[1] == "s"
    ]
    lost = [
        Operation(one.key, "owner_lost", one.given, one.called + LEASE_MS * 10**6)
        for one in found
        if one.name == "claim" and (one.is_open or _claimed(one))
    ]
    return [*found, *timed, *lost]


def _claimed(one: Operation) -> bool:
    return isinstance(one.output, tuple) and one.output[0] == CLAIMED
