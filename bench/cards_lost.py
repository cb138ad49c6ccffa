"""Count the cards that are lost while Slack is down and the outbox fills up.

Approvals are opened while no bot runs. A million other events follow, with the
product's sweeps in between. Then a bot starts and reads everything. An approval without
a card counts as lost.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from bench import progress
from bench.clicks import bot_config
from bench.stats import Figure, Measured, NotMeasured, result
from bench.world import CHANNEL, POLICY, TENANT, durable_store, open_one
from keyturn.bot.app import SlackBot
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.store.connection.connection import Argument
from keyturn.gateway.store.events.outbox import backlog
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.event_seals import sealed_texts
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox

EVENTS = 1_000_000
CARDS = 10
READER = "slack:default"

_BATCH = 1_000
_SWEEP_EVERY = 50_000
_WITHIN_S = 900.0
_POSTED_S = 60.0


async def measure(*, is_quick: bool = False) -> Figure:
    """Open approvals, announce other events after them, and start a bot."""
    events = 10_000 if is_quick else EVENTS
    async with durable_store() as (store, _), Sandbox() as sandbox:
        keys = store.keys_of_tenant(TENANT)
        await store.outbox(keys, reader=READER).prepare()
        opened = [await open_one(store, index) for index in range(CARDS)]
        await _fill(store, keys, events)
        kept = (await backlog(store.conn, keys)).events
        config = bot_config(
            bot_token=sandbox.bot_token,
            signing_secret=sandbox.signing_secret,
            api_url=sandbox.api_url,
        )
        began = time.perf_counter()
        async with SlackBot(config, ReviewService(store, lambda: POLICY)):
            await _until_read(store, keys, opened)
        seconds = time.perf_counter() - began
        places = [await store.cards.place(keys, one) for one in opened]
    lost = Measured("cards lost", "cards", ((float(places.count(None)),),))
    return Figure(
        "Cards after an outage of Slack",
        f"{CARDS} approvals wait for a card while {events:,} events follow "
        f"and no bot runs; the outbox kept {kept:,}\nof them. The bot then read "
        f"them and posted every card in {seconds:.0f} s.",
        (lost,),
        (result(f"cards lost after {events:,} events", lost, at_most=0.0),),
    )


async def _fill(store: Store, keys: Keys, events: int) -> None:
    """Announce events of other agents' calls, and sweep as the product does."""
    event = Event(
        name=EventName.ITEM_EXECUTED, tenant="default", channel=CHANNEL,
        approval=f"ap_{keys.tenant}_{0:032x}", agent="other", thread="t",
    )  # fmt: skip
    body, seal = sealed_texts(store.conn, keys, [event])[0].split("\n")
    put: list[Argument] = ["XADD", keys.outbox, "*", "e", body, "at", 1, "s", seal]
    sweeper = Sweeper(store)
    for done in range(0, events, _BATCH):
        commands: list[list[Argument]] = [put] * min(_BATCH, events - done)
        await store.conn.transaction(*commands)
        if done % _SWEEP_EVERY == 0:
            progress(f"cards lost: {done:,} of {events:,} events")
            await sweeper.sweep()


async def _until_read(store: Store, keys: Keys, opened: list[str]) -> None:
    outbox = store.outbox(keys, reader=READER)
    try:
        async with asyncio.timeout(_WITHIN_S):
            while await outbox.unread_ms():  # noqa: ASYNC110 - as below
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise NotMeasured(f"The bot did not finish within {_WITHIN_S:.0f} s.") from None
    with suppress(TimeoutError):
        # Slack allows one card a second.
        async with asyncio.timeout(_POSTED_S):
            for one in opened:
                while await store.cards.place(keys, one) is None:  # noqa: ASYNC110 - Redis is asked, there is no event for this
                    await asyncio.sleep(0.2)
