"""Wait until every thread has ended, and collect the facts for the evaluation.

The evaluation is in `tests.chaos.promises`.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from keyturn.bot.cards.channel_messages import agent_answer
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.protocol.records import ItemState
from tests.chaos.agent import effects
from tests.chaos.people import ASKER, CHANNEL, People
from tests.chaos.promises import Account, broken
from tests.chaos.stack import Stack
from tests.streams import audit_entries

CARD_S = 30.0
END_S = 90.0
"""How long nothing may end in quiet while something is left."""
FORKS = """
select thread_id, parent_checkpoint_id, count(*) from checkpoints
where checkpoint_ns = '' group by 1, 2 having count(*) > 1
"""
_DECIDED = re.compile(
    r"click\.decided decision=\S+ outcome=decided approval=(\S+) index=(\S+)"
)


@dataclass(frozen=True)
class Verdict:
    """The findings; ``wrong`` is empty when every promise was kept."""

    wrong: Sequence[str]
    counts: dict[str, int]


async def open_approvals(people: People) -> list[str]:
    """Return pending approvals."""
    found = await people.approvals()
    return [one.id for one in found if one.state is ApprovalState.OPEN]


async def cards_missing(people: People) -> list[str]:
    """Return pending approvals that can be decided on no card.

    Only the copy in the store counts: the buttons of any other are refused.
    """
    store = people.stack.store
    keys = store.keys_of_tenant("default")
    usable = {str(card["ts"]): str(card["blocks"]) for card in await people.cards()}
    missing: list[str] = []
    for each in await open_approvals(people):
        place = await store.cards.place(keys, each)
        if place is None or each not in usable.get(place.ts, ""):
            missing.append(each)
    return missing


async def wait_for_cards(people: People) -> list[str]:
    """Wait until every open approval has a card; return those without one in time.

    One more call is requested first, so that there is something to wait for.
    """
    thread = await people.ask_for_a_refund()
    missing = [f"the call asked for in {thread}"]
    try:
        async with asyncio.timeout(CARD_S):
            while missing:
                await asyncio.sleep(0.5)
                missing = await cards_missing(people)
                if not await people.waits_in(thread):
                    missing.append(f"the call asked for in {thread}")
    except TimeoutError:
        return [f"{each} has no card after {CARD_S:.0f} s of quiet" for each in missing]
    return []


async def wait_for_ends(stack: Stack, people: People) -> list[str]:
    """Decide pending calls until every thread has ended; return those that do not.

    Slack accepts one message a second in a channel, so a backlog ends one by one.
    """
    fewest, since_s = sys.maxsize, time.monotonic()
    while left := await _unended(stack, people):
        if len(left) < fewest:
            fewest, since_s = len(left), time.monotonic()
        elif time.monotonic() - since_s > END_S:
            return [f"{each} has not ended: {END_S:.0f} s without any" for each in left]
        await people.decide()
        await asyncio.sleep(0.5)
    return []


async def verdict(stack: Stack, people: People) -> Verdict:
    """Return all problems, after every thread has ended."""
    ephemerals = await stack.sandbox.person(ASKER).ephemerals(CHANNEL)
    account = Account(
        approvals=await people.approvals(),
        events=await _audit(stack),
        effects=effects(stack.effects),
        forks=await _forks(stack),
        heard=frozenset(stack.heard),
        excused=len(ephemerals),
        decided=_decided(stack),
        told=_told(stack),
    )
    states = Counter(item.state.value for item in account.items)
    happened = Counter(event.name.value for event in account.events)
    watched = (EventName.ITEM_IN_DOUBT, EventName.ITEM_REOPENED, EventName.CALL_RAN)
    counts = {
        "asked": people.asked,
        "acknowledged": len(account.heard),
        "threads": len(account.threads),
        "effects": len(account.effects),
        "clicks": people.clicks.total(),
        "decided": len(account.decided),
        **{f"items {name}": number for name, number in sorted(states.items())},
        **{name.value: happened[name.value] for name in watched},
    }
    return Verdict(broken(account), counts)


def _decided(stack: Stack) -> list[tuple[str, int | None]]:
    """Return the clicks that decided something according to a bot's log."""
    found: list[tuple[str, int | None]] = []
    for log in sorted(stack.folder.glob("bot-*.log")):
        text = log.read_text(encoding="utf-8", errors="replace")
        for approval, index in _DECIDED.findall(text):
            found.append((approval, None if index == "None" else int(index)))
    return found


def _told(stack: Stack) -> dict[str, list[str]]:
    """Return the agent's last messages in Slack, by the thread's message."""
    told: dict[str, list[str]] = {}
    for one in stack.sandbox.workspace.messages[CHANNEL].values():
        if one.thread_ts and one.text == agent_answer("").text:
            told.setdefault(one.thread_ts, []).append(json.dumps(one.blocks))
    return told


async def _unended(stack: Stack, people: People) -> list[str]:
    events = await _audit(stack)
    ended = {e.thread for e in events if e.name is EventName.RUN_FINISHED}
    # Any event counts: a run that failed at once has no first one.
    begun = Account(events=events).threads
    waiting = {
        item.id: str(item.state)
        for one in await people.approvals()
        for item in one.items
        if item.state in {ItemState.PENDING, ItemState.AUTHORIZED, ItemState.EXECUTING}
    }
    left = [
        f"thread {each}: {[str(e.name) for e in events if e.thread == each]}"
        for each in sorted(begun - ended)
    ]
    told = _told(stack)
    left += [
        f"telling the end of {each}"
        for each in sorted(ended)
        if each.rpartition(":")[2] not in told
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
        return list(await (await connection.execute(FORKS)).fetchall())
