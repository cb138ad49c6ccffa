"""A run goes on after an outage, or is parked where people see it; it is never lost."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.house import AT_ONCE, GIVING_UP, ORIGIN, House
from twokey.gateway.approvals.decisions import Reject
from twokey.gateway.approvals.events import EventName
from twokey.gateway.errors import ThreadUnavailable
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.resume.announcing import Place
from twokey.gateway.resume.retries import Retries
from twokey.gateway.retrying import RetrySettings
from twokey.gateway.store.jobs import Delivery, Job, JobKind
from twokey.gateway.store.outbox import announced
from twokey.gateway.store.stalled import RunState, StalledRun

REFUND = ("refund", {"order": "78291", "amount": 899.0})
SECRET = "sk-live-78291"


class Provider:
    """A model provider that may be away; each call that fails is counted."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.calls = 0

    def answer(self, results: list[str]) -> str:
        """Say what every call came to, unless the provider is away."""
        if self.error is not None:
            self.calls += 1
            raise self.error
        return " | ".join(results)

    async def failed(self, times: int = 1) -> None:
        """Wait until so many calls have failed."""

        async def is_so() -> bool:
            return self.calls >= times

        await eventually(is_so)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    """Let the shop's model answer through a provider."""
    found = Provider()
    monkeypatch.setattr(sample_tools, "after_tools", found.answer)
    return found


async def stalled(house: House) -> StalledRun | None:
    """Return what is kept of the thread's run."""
    run = house.keys.stalled_run("default", "shop", "t1")
    return await house.store.stalled.find(house.keys, run)


async def until_stalled(house: House, state: RunState) -> StalledRun:
    """Wait until the run is in a state."""

    async def is_so() -> bool:
        found = await stalled(house)
        return found is not None and found.state is state

    await eventually(is_so)
    found = await stalled(house)
    assert found
    return found


async def names_told(house: House) -> list[str]:
    """Return the names of the run's own events, in order, but for its beginning."""
    found = await announced(house.store.conn, house.keys)
    names = [one.name.value for one in found if one.name.value.startswith("run.")]
    return [name for name in names if name != "run.started"]


async def test_a_run_goes_on_when_its_model_is_back_however_often_it_failed(
    house: House, provider: Provider
) -> None:
    async with house.working(retries=AT_ONCE):
        await house.ask(REFUND)
        [item] = await house.asked()
        provider.error = ConnectionError(SECRET)
        await house.decide(item)
        await provider.failed(times=12)
        waiting = await until_stalled(house, RunState.WAITING)
        provider.error = None
        words = await house.words()
        await house.idle()

    assert words == "refunded 78291 899"
    assert len(sample_tools.ledger()) == 1
    assert waiting.can_pass
    assert waiting.attempts >= 11
    assert await stalled(house) is None
    assert await names_told(house) == ["run.waiting", "run.finished", "run.resumed"]
    [event] = await house.events(EventName.RUN_WAITING)
    assert event.channel == ORIGIN.channel
    assert event.data["outage"] == waiting.outage
    [item] = await house.items()
    assert int(event.data["until_ms"]) >= item.lapses_at_ms > 0


async def test_an_error_that_nobody_knows_is_retried_for_a_while(
    house: House, provider: Provider
) -> None:
    async with house.working(retries=AT_ONCE):
        await house.ask(REFUND)
        [item] = await house.asked()
        provider.error = RuntimeError("529 overloaded")
        await house.decide(item)
        await provider.failed(times=12)
        provider.error = None

        assert await house.words() == "refunded 78291 899"


async def test_what_cannot_pass_is_parked_at_once_with_its_real_reason(
    house: House, provider: Provider
) -> None:
    async with house.working(retries=AT_ONCE):
        await house.ask(REFUND)
        [item] = await house.asked()
        provider.error = KeyError(SECRET)
        await house.decide(item)
        parked = await until_stalled(house, RunState.PARKED)
        await house.idle()

    assert provider.calls == 1
    assert parked.reason == "The agent's code failed (KeyError)."
    assert not parked.can_pass
    assert "KeyError" in parked.detail
    assert SECRET not in parked.model_dump_json()
    [event] = await house.events(EventName.RUN_PARKED)
    assert event.reason == parked.reason
    assert len(sample_tools.ledger()) == 1
    assert await house.store.stalled.counts(house.keys) == (0, 1)


async def test_what_nobody_knows_is_parked_when_its_time_is_over(
    house: House, provider: Provider
) -> None:
    async with house.working(retries=GIVING_UP):
        await house.ask(REFUND)
        [item] = await house.asked()
        provider.error = RuntimeError(SECRET)
        await house.decide(item)
        parked = await until_stalled(house, RunState.PARKED)

    assert provider.calls > 1
    assert "RuntimeError" in parked.reason
    assert SECRET not in parked.model_dump_json()


async def test_an_approved_call_is_retried_until_its_approval_ends_not_only_for_a_while(
    house: House, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = AT_ONCE.model_copy(update={"limit": timedelta(milliseconds=1)})
    probe = house.runner.probe
    tries: list[str] = []

    async def away(thread: str) -> Any:
        if (await house.states()) == [ItemState.AUTHORIZED] and len(tries) < 8:
            tries.append(thread)
            raise ConnectionError("the database is away")
        return await probe(thread)

    async with house.working(retries=settings):
        await house.ask(REFUND)
        [item] = await house.asked()
        monkeypatch.setattr(house.runner, "probe", away)
        await house.decide(item)

        assert await house.words() == "refunded 78291 899"

    assert len(tries) == 8
    assert await house.events(EventName.RUN_PARKED) == []


async def test_a_message_that_cannot_be_given_is_given_once_when_that_is_possible(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = house.runner.probe
    tries: list[str] = []

    async def away(thread: str) -> Any:
        tries.append(thread)
        if len(tries) < 12:
            raise ConnectionError("the database is away")
        return await probe(thread)

    monkeypatch.setattr(house.runner, "probe", away)
    async with house.working(retries=AT_ONCE):
        await house.say("hello")
        assert await house.words() == "You said hello"
        await house.idle()

    assert await stalled(house) is None
    assert len(await house.events(EventName.RUN_STARTED)) <= 1


async def delivered(house: House) -> Delivery:
    """Take the next job, also one that waited for its time."""
    queue, taken = house.store.queue(house.keys), list[Delivery]()

    async def is_there() -> bool:
        await queue.requeue_due()
        found = await queue.take("a worker", block_ms=1)
        taken.extend([found] if found else [])
        return bool(taken)

    await eventually(is_there)
    return taken[0]


async def test_no_run_waits_for_a_message_whose_job_was_put_back_as_what_was_left(
    house: House,
) -> None:
    resume = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
    start = resume.with_(kind=JobKind.START, input="hello", id="m1")
    at = Place(house.keys, "default", "shop", "t1")
    retries, queue = Retries(house.store), house.store.queue(house.keys)
    house.store.retries = AT_ONCE
    await queue.prepare()
    await queue.put(start)
    first = await delivered(house)
    await retries.failed(at, ConnectionError(), left=start, delivery=first)
    # It was given by then, and another job of the thread was under way.
    second = await delivered(house)
    await queue.later(Delivery(second.id, resume), delay_ms=0)

    await retries.went_on(at, await delivered(house))
    last = await delivered(house)
    assert last.job == start
    await retries.went_on(at, last)

    assert await stalled(house) is None
    assert await queue.depth() == 0


async def test_a_thread_that_waits_has_one_job_however_much_is_decided(
    house: House, provider: Provider
) -> None:
    slow = RetrySettings(first=timedelta(minutes=10), longest=timedelta(minutes=10))
    resume = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
    async with house.working(retries=slow):
        provider.error = ConnectionError()
        await house.ask(("look_up", {"order": "1"}))
        await until_stalled(house, RunState.WAITING)

        async def is_put_back() -> bool:
            found = await stalled(house)
            return found is not None and found.attempts == provider.calls

        for _ in range(5):
            await eventually(is_put_back)
            before = provider.calls
            await house.store.queue(house.keys).put(resume)
            await provider.failed(before + 1)
        await eventually(is_put_back)
        assert await house.store.queue(house.keys).depth() == 1
        waiting = await until_stalled(house, RunState.WAITING)
        assert waiting.jobs == (resume,)


async def test_waiting_and_passable_parked_runs_are_tried_when_a_process_starts(
    house: House, provider: Provider
) -> None:
    slow = RetrySettings(
        first=timedelta(hours=1),
        longest=timedelta(hours=1),
        told_after=timedelta(),
    )
    async with house.working(retries=slow):
        provider.error = ConnectionError()
        await house.ask(("look_up", {"order": "1"}))
        await until_stalled(house, RunState.WAITING)
    provider.error = None

    async with house.working():
        assert await house.words() == "found 1"

    over = slow.model_copy(update={"limit": timedelta(milliseconds=1)})
    over = over.model_copy(update={"first": timedelta(milliseconds=1)})
    provider.error = ConnectionError()
    async with house.working(retries=over):
        await house.ask(("look_up", {"order": "2"}))
        await until_stalled(house, RunState.PARKED)
    provider.error = None

    async with house.working():
        assert await house.words(count=2) == "found 2"
    assert await stalled(house) is None


async def test_a_rejection_during_an_outage_counts_when_the_run_goes_on(
    house: House, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = house.runner.probe
    down = {"is_down": False}

    async def away(thread: str) -> Any:
        if down["is_down"]:
            raise ConnectionError("the database is away")
        return await probe(thread)

    async with house.working(retries=AT_ONCE):
        await house.ask(REFUND, ("email", {"to": "ana@example.org"}))
        refund, email = await house.asked(2)
        monkeypatch.setattr(house.runner, "probe", away)
        down["is_down"] = True
        await house.decide(refund)
        await until_stalled(house, RunState.WAITING)
        await house.decide(email, Reject(reason="not now"))
        down["is_down"] = False
        words = await house.words()

    assert "refunded 78291 899" in words
    assert "not now" in words
    assert len(sample_tools.ledger()) == 1


async def test_a_run_in_which_an_approval_ends_during_an_outage_says_so(
    house: House, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = house.runner.probe
    down = {"is_down": False}

    async def away(thread: str) -> Any:
        if down["is_down"]:
            raise ConnectionError("the database is away")
        return await probe(thread)

    async with house.working(retries=AT_ONCE):
        await house.ask(REFUND)
        [item] = await house.asked()
        monkeypatch.setattr(house.runner, "probe", away)
        down["is_down"] = True
        await house.decide(item)
        await until_stalled(house, RunState.WAITING)
        await lapse(house, item.id)
        down["is_down"] = False
        await house.words()

    assert await house.states() == [ItemState.LAPSED]
    assert sample_tools.ledger() == []


async def lapse(house: House, item_id: str) -> None:
    """Let an authorization end now, and wait until it did."""
    head = house.keys.head(item_id.rpartition(".")[0])
    await house.store.conn.command("HSET", head, "0:l", "1")
    await house.store.conn.command("ZADD", house.keys.expiry, 1, item_id[:-2])

    async def is_over() -> bool:
        return await house.states() == [ItemState.LAPSED]

    await eventually(is_over)


async def test_a_job_that_no_process_serves_backs_off_and_is_listed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twokey.gateway.resume.retries.UNSERVED_S", 0.0)
    await house.say("hello")
    house.runners.clear()
    async with house.working():
        found = await until_stalled(house, RunState.WAITING)

    assert found.trouble == "unserved"
    assert found.reason.startswith("No process runs the agent")
    assert await house.store.stalled.counts(house.keys) == (1, 0)

    house.runners["shop"] = house.runner
    async with house.working():
        assert await house.words() == "You said hello"


async def test_a_dropped_run_ends_its_calls_and_a_new_message_begins_anew(
    house: House, provider: Provider
) -> None:
    resume = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
    async with house.working(retries=AT_ONCE):
        await house.ask(REFUND)
        [item] = await house.asked()
        provider.error = KeyError()
        await house.decide(item)
        parked = await until_stalled(house, RunState.PARKED)
        calls = provider.calls

        async def is_dropped() -> bool:
            # The worker that parked it may hold the thread for a moment longer.
            with suppress(ThreadUnavailable):
                return await house.reviews.runs.drop(parked, "T0/U0ANA")
            return False

        await eventually(is_dropped)
        provider.error = None
        await house.store.queue(house.keys).put(resume)
        await house.idle()
        assert provider.calls == calls
        assert await house.events(EventName.RUN_FINISHED) == []
        await house.say("hello")
        assert await house.words() == "You said hello"

    assert await house.reviews.runs.all() == []
    [event] = await house.events(EventName.RUN_DROPPED)
    assert event.actor == "T0/U0ANA"


async def test_a_run_that_is_tried_again_has_its_time_for_retries_anew(
    house: House, provider: Provider
) -> None:
    async with house.working(retries=GIVING_UP):
        provider.error = RuntimeError()
        await house.ask(("look_up", {"order": "1"}))
        parked = await until_stalled(house, RunState.PARKED)
    assert await house.reviews.runs.retry(parked, "cli/ana")
    tried = await stalled(house)
    assert tried
    assert tried.retried_since_ms >= parked.at_ms > parked.retried_since_ms

    async with house.working(retries=AT_ONCE):
        await provider.failed(times=provider.calls + 4)
        await until_stalled(house, RunState.WAITING)
        provider.error = None

        assert await house.words() == "found 1"
    assert len(await house.events(EventName.RUN_RETRIED)) == 1


async def test_a_record_of_an_older_version_is_changed_as_well(
    house: House, provider: Provider
) -> None:
    async with house.working(retries=AT_ONCE):
        await house.ask(("look_up", {"order": "1"}))
        provider.error = KeyError()
        parked = await until_stalled(house, RunState.PARKED)
        older = parked.model_dump_json(exclude={"is_listed", "told", "format"})
        name = house.keys.stalled
        await house.store.conn.command("HSET", name, parked.id, older)
        provider.error = None
        found = await stalled(house)
        assert found
        assert await house.reviews.runs.retry(found, "cli/ana")

        assert await house.words() == "found 1"
    assert await stalled(house) is None
