"""Say what is wrong at the end: what was doubled, lost or forked, or never ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from gateway.approvals.events import Event, EventName
from gateway.approvals.lifecycle import ApprovalState, ItemState
from gateway.approvals.record import Approval
from gateway.store.outbox import audit_entries
from tests.chaos.agent import effects
from tests.chaos.people import People
from tests.chaos.stack import Stack

CARD_S = 30.0
END_S = 90.0
_FORKS = """
select thread_id, parent_checkpoint_id, count(*) from checkpoints
where checkpoint_ns = '' group by 1, 2 having count(*) > 1
"""


@dataclass(frozen=True)
class Verdict:
    """What was found; ``wrong`` is empty when every promise was kept."""

    wrong: Sequence[str]
    counts: dict[str, int]


async def cards_missing(people: People) -> list[str]:
    """Return what waits for a person and can be decided on no card."""
    open_ = [
        one.id for one in await people.approvals() if one.state is ApprovalState.OPEN
    ]
    shown = str([card["blocks"] for card in await people.cards()])
    return [each for each in open_ if each not in shown]


async def wait_for_cards(people: People) -> list[str]:
    """Wait until everything open has a card; return what has none in time."""
    missing = await cards_missing(people)
    try:
        async with asyncio.timeout(CARD_S):
            while missing:
                await asyncio.sleep(0.5)
                missing = await cards_missing(people)
    except TimeoutError:
        return [f"{each} has no card after {CARD_S:.0f} s of quiet" for each in missing]
    return []


async def wait_for_ends(stack: Stack, people: People) -> list[str]:
    """Decide what comes up until every thread has ended; return those that do not."""
    left: list[str] = ["unknown"]
    try:
        async with asyncio.timeout(END_S):
            while left := await _unended(stack, people):
                await people.decide()
                await asyncio.sleep(0.5)
    except TimeoutError:
        return [f"{each} has not ended after {END_S:.0f} s of quiet" for each in left]
    return []


async def judge(stack: Stack, people: People) -> Verdict:
    """Return everything that is wrong, when everything has come to its end."""
    approvals = await people.approvals()
    events = await _audit(stack)
    done = effects(stack.effects)
    wrong = [*_doubled(done), *_unmatched(approvals, done), *_lost(approvals, events)]
    wrong += [f"forked: {row}" for row in await _forks(stack)]
    wrong += _told_twice(events)
    states = Counter(item.state.value for one in approvals for item in one.items)
    counts = {
        "asked": people.asked,
        "threads": len(_threads(events)),
        "effects": len(done),
        "clicks": people.clicks.total(),
        **{f"items {name}": number for name, number in sorted(states.items())},
    }
    return Verdict(wrong, counts)


def _doubled(done: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the calls with more than one effect.

    An idempotent one may be repeated, but under one key.
    """
    keys: dict[tuple[str, str], list[str]] = {}
    for name, order, key in done:
        keys.setdefault((name, order), []).append(key)
    return [
        f"doubled: {name} {order} took effect {len(found)} times, keys {found}"
        for (name, order), found in keys.items()
        if len(set(found) if name == "email" else found) > 1
    ]


def _unmatched(
    approvals: Sequence[Approval], done: Sequence[tuple[str, str, str]]
) -> list[str]:
    """Return items that ran by the record and not in the world, or the other way."""
    orders = {(name, order) for name, order, _ in done}
    wrong: list[str] = []
    for item in (item for one in approvals for item in one.items):
        has_run = (item.tool, item.args["order"]) in orders
        is_settled = any(one.settlement is not None for one in [item])
        if item.state is ItemState.EXECUTED and not has_run and not is_settled:
            wrong.append(f"lost: {item.id} was executed and had no effect")
        if has_run and item.state not in {ItemState.EXECUTED, ItemState.IN_DOUBT}:
            wrong.append(f"unauthorized: {item.id} is {item.state} and took effect")
    return wrong


def _lost(approvals: Sequence[Approval], events: Sequence[Event]) -> list[str]:
    """Return decisions that were kept and did not come to anything."""
    decided = {e.item for e in events if e.name is EventName.ITEM_AUTHORIZED}
    ended = {ItemState.EXECUTED, ItemState.FAILED, ItemState.IN_DOUBT}
    return [
        f"lost: {item.id} was authorized and is {item.state}"
        for one in approvals
        for item in one.items
        if item.id in decided and item.state not in ended
    ]


def _told_twice(events: Sequence[Event]) -> list[str]:
    ends = Counter(e.thread for e in events if e.name is EventName.RUN_FINISHED)
    return [f"told {n} times: the end of {t}" for t, n in ends.items() if n > 1]


def _threads(events: Sequence[Event]) -> set[str]:
    return {e.thread for e in events if e.name is EventName.RUN_STARTED}


async def _unended(stack: Stack, people: People) -> list[str]:
    events = await _audit(stack)
    ended = {e.thread for e in events if e.name is EventName.RUN_FINISHED}
    waiting = {
        item.id: str(item.state)
        for one in await people.approvals()
        for item in one.items
        if item.state in {ItemState.PENDING, ItemState.AUTHORIZED, ItemState.EXECUTING}
    }
    left = [
        f"thread {each}: {[str(e.name) for e in events if e.thread == each]}"
        for each in sorted(_threads(events) - ended)
    ]
    jobs = await stack.store.queue(stack.store.keys_of_tenant("default")).depth()
    left += [f"item {each} ({state})" for each, state in waiting.items()]
    return [*left, f"{jobs} jobs"] if jobs else left


async def _audit(stack: Stack) -> list[Event]:
    store = stack.store
    return list(await audit_entries(store.conn, store.keys_of_tenant("default")))


async def _forks(stack: Stack) -> list[Any]:
    connection = await psycopg.AsyncConnection.connect(stack.postgres)
    async with connection:
        return list(await (await connection.execute(_FORKS)).fetchall())
