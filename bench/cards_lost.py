"""Count the cards that are lost while Slack is away and the outbox fills up.

`python -m bench.cards_lost 1000000` opens approvals while no bot runs, lets that many
other events follow with the sweeps of the product in between, then starts a bot and
waits until it has read everything. A card is lost when its approval has none.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.clicks import CHANNEL, POLICY, bot_config
from bench.stats import NotMeasured
from twokey.bot.app import SlackBot
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import approval_of
from twokey.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.service.sweep import Sweeper
from twokey.gateway.store.connection import Argument
from twokey.gateway.store.engine import EmbeddedEngine
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.outbox import announcement
from twokey.gateway.store.readers import backlog
from twokey.gateway.store.store import Store
from twokey.sandbox.server import Sandbox

EVENTS = 100_000
CARDS = 10
READER = "slack:default"

_BATCH = 1_000
_SWEEP_EVERY = 50_000
_WITHIN_S = 900.0


@dataclass(frozen=True, slots=True)
class Lost:
    """Result.

    Attributes:
        events: how many were announced while no bot ran.
        cards: how many approvals waited for one.
        lost: how many of them have none.
        kept: how many events the outbox held when the bot started.
        seconds: from its start until all was read and every card posted.
        memory_mb: the most memory that this process held.
    """

    events: int
    cards: int
    lost: int
    kept: int
    seconds: float
    memory_mb: float


async def measure(
    store: Store, sandbox: Sandbox, *, events: int = EVENTS, cards: int = CARDS
) -> Lost:
    """Open approvals, announce so many events behind them, and start a bot.

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
    # Linux counts it in kilobytes.
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Lost(events, cards, len(missing), kept, seconds, memory_mb)


async def _opened(store: Store, cards: int) -> list[str]:
    agents = AgentService(store, lambda: POLICY)
    found: list[str] = []
    for index in range(cards):
        ref = TurnRef(agent="support", thread=f"t{index}", message_id="m")
        args = {"order_id": str(index), "amount": 1}
        call = ProposedCall(tool="process_refund", args=args, tool_call_id="c")
        (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
        found.append(approval_of(verdict.item_id)[0])
    return found


async def _fill(store: Store, keys: Keys, events: int) -> None:
    """Announce what other agents' calls did, and sweep as the product does."""
    event = Event(
        name=EventName.ITEM_EXECUTED, tenant="default", channel=CHANNEL,
        approval=f"ap_{keys.shard}_{0:032x}", agent="other", thread="t",
    )  # fmt: skip
    put, _ = announcement(keys, event, event, 1)
    sweeper = Sweeper(store)
    for done in range(0, events, _BATCH):
        commands: list[list[Argument]] = [put] * min(_BATCH, events - done)
        await store.conn.transaction(*commands)
        if done % _SWEEP_EVERY == 0:
            await sweeper.sweep()


async def _until_read(store: Store, keys: Keys, opened: list[str]) -> None:
    outbox = store.outbox(keys, reader=READER)
    try:
        async with asyncio.timeout(_WITHIN_S):
            while await outbox.unread_ms():  # noqa: ASYNC110 - as below
                await asyncio.sleep(0.2)
            while await store.cards.outdated(keys, "default", len(opened)):  # noqa: ASYNC110 - Redis is asked, there is no event for this
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise NotMeasured(f"The bot did not finish within {_WITHIN_S:.0f} s.") from None


def report(found: Lost) -> str:
    """Return the figures as lines."""
    return (
        f"{found.lost} of {found.cards} cards lost after {found.events:,} events "
        f"without a bot (target: 0)\n"
        f"the outbox kept {found.kept:,} events; the bot read them and posted every "
        f"card in {found.seconds:.0f} s, with at most {found.memory_mb:.0f} MB"
    )


async def _main(events: int) -> int:
    with (
        tempfile.TemporaryDirectory(prefix="tk-lost-") as folder,
        EmbeddedEngine(Path(folder)) as engine,
    ):
        store = Store(engine.url)
        async with Sandbox() as sandbox:
            try:
                found = await measure(store, sandbox, events=events)
            finally:
                await store.close()
    sys.stdout.write(report(found) + "\n")
    return 1 if found.lost else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS)))
