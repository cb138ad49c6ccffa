"""Count the cards that are lost while Slack is down and the outbox fills up.

Approvals are opened while no bot runs. A million other events follow, with the
product's sweeps in between. Then a bot starts and reads everything. An approval without
a card counts as lost.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import SECRETS, progress
from bench.clicks import CHANNEL, POLICY, bot_config
from bench.stats import Figure, Measured, NotMeasured, plain
from keyturn.bot.app import SlackBot
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.store.connection.connection import Argument
from keyturn.gateway.store.events.outbox import announcement
from keyturn.gateway.store.events.readers import backlog
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.open_store import open_store
from keyturn.gateway.store.store import Store
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.server import Sandbox

EVENTS = 1_000_000
CARDS = 10
READER = "slack:default"

_BATCH = 1_000
_SWEEP_EVERY = 50_000
_WITHIN_S = 900.0


@dataclass(frozen=True, slots=True)
class Lost:
    """Result.

    Attributes:
        events: the number of events while no bot ran.
        cards: the number of approvals that waited for a card.
        lost: the number of those without one.
        kept: the number of events in the outbox when the bot started.
        seconds: from the bot's start until all was read and every card posted.
    """

    events: int
    cards: int
    lost: int
    kept: int
    seconds: float


async def measured(
    store: Store, sandbox: Sandbox, *, events: int = EVENTS, cards: int = CARDS
) -> Lost:
    """Open approvals, announce the given number of events after them, and start a bot.

    Raises:
        NotMeasured: when the bot did not read everything in time.
    """
    keys = store.keys_of_tenant("default")
    await store.outbox(keys, reader=READER).prepare()
    opened = await _opened(store, cards)
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
    missing = [one for one in opened if await store.cards.place(keys, one) is None]
    return Lost(events, cards, len(missing), kept, seconds)


async def _opened(store: Store, cards: int) -> list[str]:
    agents = AgentService(store, lambda: POLICY)
    found: list[str] = []
    for index in range(cards):
        ref = TurnRef(agent="support", thread=f"t{index}", message_id="m")
        args: JsonObject = {"order_id": str(index), "amount": 1}
        call = ProposedCall(tool="process_refund", args=args, tool_call_id="c")
        (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
        found.append(approval_of(verdict.item_id)[0])
    return found


async def _fill(store: Store, keys: Keys, events: int) -> None:
    """Announce events of other agents' calls, and sweep as the product does."""
    event = Event(
        name=EventName.ITEM_EXECUTED, tenant="default", channel=CHANNEL,
        approval=f"ap_{keys.tenant}_{0:032x}", agent="other", thread="t",
    )  # fmt: skip
    put, _ = announcement(store.conn, keys, event, event, 1)
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
            while await store.cards.outdated(keys, len(opened)):  # noqa: ASYNC110 - Redis is asked, there is no event for this
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise NotMeasured(f"The bot did not finish within {_WITHIN_S:.0f} s.") from None


async def measure(*, is_quick: bool = False) -> Figure:
    """Measure that ten cards survive a million events."""
    events = 10_000 if is_quick else EVENTS
    with TemporaryDirectory(prefix="tk-bench-") as folder:
        async with (
            open_store(None, Path(folder), secrets=SECRETS) as store,
            Sandbox() as sandbox,
        ):
            found = await measured(store, sandbox, events=events)
    lost = Measured("cards lost", "cards", ((float(found.lost),),))
    return Figure(
        "Cards after an outage of Slack",
        f"{found.cards} approvals wait for a card while {found.events:,} events follow "
        f"and no bot runs; the outbox kept {found.kept:,}\nof them. The bot then read "
        f"them and posted every card in {found.seconds:.0f} s.",
        (lost,),
        (plain(f"cards lost after {found.events:,} events", lost, at_most=0.0),),
    )
