"""Entries are worked on for as long as there is work, the most urgent ones first."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

import pytest

from keyturn.bot.delivery.card_publisher import RESERVED
from keyturn.bot.delivery.outbox_queue import OutboxQueue, QueueEntry
from keyturn.bot.delivery.publisher import AT_ONCE, Scheduler
from keyturn.bot.limits import POST, UPDATE, Call, Limits
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.sandbox.clock import Clock
from keyturn.sandbox.rate_limits import RateLimits

pytestmark = pytest.mark.usefixtures("slacks_limits")

CARD, WORDS, VOTE, HISTORY = (
    EventName.APPROVAL_OPENED,
    EventName.RUN_FINISHED,
    EventName.ITEM_VOTED,
    EventName.ITEM_EXECUTED,
)


@dataclass
class Stand:
    """A scheduler over a queue, with steps that a test ends."""

    now: float = 1000.0
    started: list[str] = field(default_factory=list[str])
    gates: dict[str, asyncio.Future[float]] = field(
        default_factory=dict[str, asyncio.Future[float]]
    )
    is_gated: bool = False
    calls: dict[str, Call | None] = field(default_factory=dict[str, Call | None])
    asked: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.queue = OutboxQueue()
        # No bound method: a copy of the limits would copy all of this.
        self.limits = Limits(lambda: self.now)
        self.scheduler = Scheduler(
            self.queue, limits=self.limits, step=self.step, clock=self.clock
        )

    def clock(self) -> float:
        return self.now

    async def step(self, entry: QueueEntry) -> float:
        self.asked.append(entry.key)
        call = self.calls.get(entry.key)
        if call and (wait_s := self.limits.take(*call)):
            entry.delayed_by = call
            return wait_s
        self.started.append(entry.key)
        if self.is_gated:
            self.gates[entry.key] = asyncio.get_running_loop().create_future()
            if wait_s := await self.gates[entry.key]:
                return wait_s
        entry.events, entry.shown = [], entry.wanted
        return 0.0

    def add(self, name: EventName, key: str) -> None:
        self.queue.add(event_of(name, key))
        self.scheduler.changed.set()


def event_of(name: EventName, key: str) -> Event:
    is_words = name is WORDS
    return Event(
        name=name,
        tenant="default",
        agent="a" if is_words else "",
        thread=key if is_words else "",
        approval="" if is_words else key,
        channel="C1",
    )


@pytest.fixture
async def stand() -> Stand:
    return Stand()


async def turns(count: int = 8) -> None:
    """Run the event loop until nothing more can happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_600_topics_that_are_due_are_all_worked_on(stand: Stand) -> None:
    for number in range(600):
        stand.add(WORDS, f"t{number}")
    running = asyncio.create_task(stand.scheduler.run())

    async with asyncio.timeout(20):
        while len(stand.queue):  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0)

    running.cancel()
    assert len(stand.started) == 600
    assert stand.scheduler.stalled_s() == 0


async def test_a_free_method_waits_for_no_limited_one(stand: Stand) -> None:
    """After an outage some hundred cards wait for the limit of updates."""
    stand.calls = {f"ap_{number}": Call(UPDATE) for number in range(300)}
    for key in stand.calls:
        stand.add(HISTORY, key)
    stand.limits.refused(UPDATE, "", 300.0)
    for _ in range(100):
        stand.scheduler.start_due()
        await turns()
    stand.now += 299
    stand.calls["ap_7"] = None
    stand.add(HISTORY, "ap_7")
    stand.scheduler.start_due()
    await turns()

    assert stand.started == ["ap_7"]
    assert sorted(stand.asked) == sorted([*stand.calls, "ap_7"]), "each asked once"


async def test_the_next_token_is_for_the_most_urgent(stand: Stand) -> None:
    keys = ["a", "b", "c"]
    stand.calls = dict.fromkeys(keys, Call(UPDATE))
    for key in keys:
        stand.add(HISTORY, key)
    stand.limits.refused(UPDATE, "", 30.0)
    stand.scheduler.start_due()
    await turns()

    stand.add(VOTE, "c")
    stand.scheduler.start_due()
    await turns()
    stand.now += 30
    stand.scheduler.start_due()
    await turns()

    assert stand.started == ["c"]
    assert stand.asked[-1] == "c", "the others do not even try"


ENDS = (0.0, 0.05, RuntimeError("broken"))
"""A step is done, has to wait, or breaks."""


@pytest.mark.parametrize("ends", list(itertools.product(ENDS, repeat=2)))
async def test_whatever_ends_in_one_turn_of_the_loop_the_rest_goes_on(
    stand: Stand, ends: tuple[float | RuntimeError, ...]
) -> None:
    stand.is_gated = True
    running = asyncio.create_task(stand.scheduler.run())
    for order in itertools.permutations(range(AT_ONCE)):
        stand.gates.clear()
        for number in range(AT_ONCE + 4):
            stand.add(WORDS, f"t{number}")
        await turns()
        stand.add(CARD, "card")
        await turns()
        assert len(stand.gates) == AT_ONCE
        gates = list(stand.gates.values())

        for place in order:
            end = (0.0, *ends, 0.05)[place]
            if isinstance(end, RuntimeError):
                gates[place].set_exception(end)
            else:
                gates[place].set_result(end)
        await turns()

        at_work = [gate for gate in stand.gates.values() if not gate.done()]
        assert len(at_work) == AT_ONCE - 1, "all places but that for cards are taken"
        await everything_else(stand)
    running.cancel()


async def everything_else(stand: Stand) -> None:
    """Run all steps at once, until the queue is empty."""
    while len(stand.queue):
        stand.now += 10
        stand.scheduler.changed.set()
        for gate in stand.gates.values():
            if not gate.done():
                gate.set_result(0.0)
        await turns()


async def test_a_new_card_takes_the_token_before_words(stand: Stand) -> None:
    stand.calls = {"card": Call(POST, "C1"), "next": Call(POST, "C1")}
    for number in range(40):
        stand.add(WORDS, f"t{number}")
        stand.calls[f"a t{number}"] = Call(POST, "C1", RESERVED)
    for _ in range(3):
        stand.scheduler.start_due()
        await turns()
    words = len(stand.started)

    stand.add(CARD, "card")
    stand.scheduler.start_due()
    await turns()

    assert stand.started[words:] == ["card"], "a token was kept for it"
    stand.add(CARD, "next")
    stand.now += stand.limits.wait_s(POST, "C1")
    stand.scheduler.start_due()
    await turns()
    assert stand.started[words + 1 :] == ["next"], "the next token is for a card, too"


async def test_words_leave_a_place_at_work_to_a_new_card(stand: Stand) -> None:
    stand.is_gated = True
    for number in range(AT_ONCE + 1):
        stand.add(WORDS, f"t{number}")
    stand.scheduler.start_due()
    stand.add(CARD, "card")

    stand.scheduler.start_due()
    await turns()

    assert stand.started[-1] == "card"
    assert len(stand.scheduler.running) == AT_ONCE
    for gate in stand.gates.values():
        gate.set_result(0.0)
    await stand.scheduler.finish(1.0)


async def test_people_come_before_words_and_history(stand: Stand) -> None:
    for name, key in ((HISTORY, "h"), (WORDS, "w"), (VOTE, "v"), (CARD, "c")):
        stand.add(name, key)

    stand.scheduler.start_due()
    await turns()
    stand.scheduler.start_due()
    await turns()

    assert stand.started == ["c", "v", "a w", "h"]


# Calls go out as fast as Slack promises to take them, and no faster.


@dataclass
class Hands(Clock):
    """A clock that a test moves."""

    at: float = 1000.0

    def now(self) -> float:
        return self.at


def limits_at(clock: Hands) -> Limits:
    return Limits(clock.now)


def event(approval: str, name: EventName, seq: int = 0) -> Event:
    return Event(name=name, tenant="default", approval=approval, seq=f"{seq}-0")


def test_a_burst_goes_out_at_once_and_the_rest_in_time() -> None:
    clock = Hands()
    limits = limits_at(clock)

    burst = 0
    while limits.take(UPDATE) == 0:
        burst += 1
    wait_s = limits.wait_s(UPDATE)
    clock.at += wait_s

    assert burst == 6
    assert 1.3 < wait_s < 1.4
    assert limits.take(UPDATE) == 0
    assert limits.take(UPDATE) > 0


def test_after_a_429_only_its_method_and_channel_stand_still() -> None:
    clock = Hands()
    limits = limits_at(clock)

    limits.refused(POST, "C1", 30)

    assert limits.wait_s(POST, "C1") == 30
    assert limits.wait_s(POST, "C2") == limits.wait_s(UPDATE) == 0
    clock.at += 30
    assert limits.take(POST, "C1") == 0
    assert limits.take(POST, "C1") > 0


@pytest.mark.parametrize(("method", "channel"), [(POST, "C1"), (UPDATE, "")])
def test_slack_never_has_to_refuse_a_storm(method: str, channel: str) -> None:
    clock = Hands()
    limits, slack = limits_at(clock), RateLimits(clock)

    for _ in range(300):
        clock.at += limits.wait_s(method, channel)
        assert limits.take(method, channel) == 0
        assert slack.take(method, channel) is None


def test_news_hurries_a_topic_that_waits_and_none_that_fails() -> None:
    queue = OutboxQueue()
    queue.add(event("ap1", EventName.APPROVAL_OPENED))
    (entry,) = queue
    entry.not_before = 50.0

    queue.add(event("ap1", EventName.ITEM_AUTHORIZED))
    assert entry.not_before == 0
    entry.failures, entry.not_before = 3, 50.0
    queue.add(event("ap1", EventName.ITEM_EXECUTED))
    assert entry.not_before == 50


def test_a_channels_name_and_its_id_share_one_limit() -> None:
    limits = limits_at(Hands())
    limits.alias_channel("#refunds", "C1")
    while limits.take(POST, "C1") == 0:
        pass

    assert limits.wait_s(POST, "#refunds") > 0
