"""A run goes on after an outage, or is parked where people see it; it is never lost."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.client import bridge
from keyturn.gateway.errors import StoreUnavailable, ThreadUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.service.people.freezing import RunService
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.connection.connection import text
from keyturn.gateway.store.keys import RETENTION
from keyturn.gateway.store.runs.jobs import (
    Delivery,
    Job,
    JobKind,
    RunState,
    StalledRun,
    sealed_job,
)
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import AT_ONCE, GIVING_UP, ORIGIN, REFUND, Stack
from tests.streams import announced

SECRET = "sk-live-78291"


class Provider:
    """A model provider that may be away; each call that fails is counted."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.calls = 0

    def answer(self, results: list[str]) -> str:
        """Return the results of all calls, unless the provider fails."""
        if self.error is not None:
            self.calls += 1
            raise self.error
        return " | ".join(results)

    async def failed(self, times: int = 1) -> None:
        """Wait until so many calls have failed."""
        await eventually(lambda: self.calls >= times)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    """Give the shop's model a provider that can fail."""
    found = Provider()
    monkeypatch.setattr(sample_tools, "after_tools", found.answer)
    return found


async def refund_asked(stack: Stack) -> Item:
    """Ask for a refund, and wait until only its decision is missing."""
    await stack.ask(REFUND)
    [item] = await stack.asked()
    # Else the run that asked takes the answer, and the decision's job is one more.
    await stack.idle()
    return item


async def stalled(stack: Stack) -> StalledRun | None:
    """Return the stored fields of the thread's run."""
    run = stack.keys.stalled_run("shop", "t1")
    return await stack.store.stalled.find(stack.keys, run)


async def until_stalled(stack: Stack, state: RunState) -> StalledRun:
    """Wait until the run is in a state."""

    async def is_so() -> bool:
        found = await stalled(stack)
        return found is not None and found.state is state

    await eventually(is_so)
    found = await stalled(stack)
    assert found
    return found


async def names_told(stack: Stack) -> list[str]:
    """Return the names of the run's events in order, except for its start."""
    found = await announced(stack.store.conn, stack.keys)
    names = [one.name.value for one in found if one.name.value.startswith("run.")]
    return [name for name in names if name != "run.started"]


@pytest.mark.slow
async def test_a_run_outlives_any_outage(stack: Stack, provider: Provider) -> None:
    async with stack.working(retries=AT_ONCE):
        item = await refund_asked(stack)
        provider.error = ConnectionError(SECRET)
        await stack.decide(item)
        await provider.failed(times=12)
        waiting = await until_stalled(stack, RunState.WAITING)
        provider.error = None
        words = await stack.words()
        await stack.idle()

    assert words == "refunded 78291 899"
    assert len(sample_tools.ledger()) == 1
    assert waiting.can_pass
    assert waiting.attempts >= 11
    assert await stalled(stack) is None
    assert await names_told(stack) == ["run.waiting", "run.finished", "run.resumed"]
    [event] = await stack.events(EventName.RUN_WAITING)
    assert event.channel == ORIGIN.channel
    assert event.data["outage"] == waiting.outage
    [item] = await stack.items()
    assert int(event.data["until_ms"]) >= item.lapses_at_ms > 0


async def test_a_final_failure_is_parked(stack: Stack, provider: Provider) -> None:
    async with stack.working(retries=AT_ONCE):
        item = await refund_asked(stack)
        provider.error = KeyError(SECRET)
        await stack.decide(item)
        parked = await until_stalled(stack, RunState.PARKED)
        await stack.idle()

    assert provider.calls == 1
    assert parked.reason == "The agent's code failed (KeyError)."
    assert not parked.can_pass
    assert "KeyError" in parked.detail
    assert SECRET not in parked.model_dump_json()
    [event] = await stack.events(EventName.RUN_PARKED)
    assert event.reason == parked.reason
    assert len(sample_tools.ledger()) == 1
    assert await stack.store.stalled.counts(stack.keys) == (0, 1)


@pytest.mark.slow
async def test_an_approved_call_is_retried_until_its_approval_ends_not_only_for_a_while(
    stack: Stack, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = AT_ONCE.model_copy(update={"limit": timedelta(milliseconds=1)})
    probe = stack.runner.probe
    tries: list[str] = []

    async def away(thread: str) -> Any:
        if (await stack.states()) == [ItemState.AUTHORIZED] and len(tries) < 8:
            tries.append(thread)
            raise ConnectionError("the database is away")
        return await probe(thread)

    async with stack.working(retries=settings):
        item = await refund_asked(stack)
        monkeypatch.setattr(stack.runner, "probe", away)
        await stack.decide(item)

        assert await stack.words() == "refunded 78291 899"

    assert len(tries) == 8
    assert await stack.events(EventName.RUN_PARKED) == []


async def delivered(stack: Stack) -> Delivery:
    """Take the next job, also one that waited for its time."""
    queue, taken = stack.store.queue(stack.keys), list[Delivery]()

    async def is_there() -> bool:
        await queue.requeue_due()
        found = await queue.take(block_ms=1)
        taken.extend([found] if found else [])
        return bool(taken)

    await eventually(is_there)
    return taken[0]


@pytest.mark.parametrize("was_given", [True, False], ids=["given", "not_given"])
async def test_no_run_waits_for_a_lost_job(stack: Stack, *, was_given: bool) -> None:
    start = sealed_job(
        stack.store.sealing,
        RESUME.with_(kind=JobKind.START, input="hello", id="m1"),
    )
    at = RunRef(agent="shop", thread="t1")
    retries, queue = Retries(stack.store), stack.store.queue(stack.keys)
    stack.store.retries = AT_ONCE
    await queue.prepare()
    await queue.put(start)
    first = await delivered(stack)
    await retries.failed(at, ConnectionError(), left=start, delivery=first)
    if was_given:
        await stack.runner.start("t1", "hello", key="m1")
    # Another job of the thread was under way.
    second = await delivered(stack)
    await queue.later(Delivery(second.id, RESUME), delay_ms=0)

    await retries.record_resumed(at, await delivered(stack), stack.runner)
    # A delivered message is not queued again: a worker with its job would find the
    # thread busy and put the job back, again and again.
    assert await queue.depth() == (0 if was_given else 1)
    if not was_given:
        last = await delivered(stack)
        assert last.job == start
        await retries.record_resumed(at, last, stack.runner)

    assert await stalled(stack) is None
    assert await queue.depth() == 0


@pytest.mark.slow
async def test_a_start_tries_waiting_runs(stack: Stack, provider: Provider) -> None:
    slow = RetrySettings(
        first=timedelta(hours=1),
        longest=timedelta(hours=1),
        notify_after=timedelta(),
    )
    async with stack.working(retries=slow):
        provider.error = ConnectionError()
        await stack.ask(("look_up", {"order": "1"}))
        await until_stalled(stack, RunState.WAITING)
    provider.error = None

    async with stack.working():
        assert await stack.words() == "found 1"

    over = slow.model_copy(update={"limit": timedelta(milliseconds=1)})
    over = over.model_copy(update={"first": timedelta(milliseconds=1)})
    provider.error = ConnectionError()
    async with stack.working(retries=over):
        await stack.ask(("look_up", {"order": "2"}))
        await until_stalled(stack, RunState.PARKED)
    provider.error = None

    async with stack.working():
        assert await stack.words(count=2) == "found 2"
    assert await stalled(stack) is None


@pytest.mark.slow
async def test_a_dropped_run_ends_its_calls(stack: Stack, provider: Provider) -> None:
    async with stack.working(retries=AT_ONCE):
        item = await refund_asked(stack)
        provider.error = KeyError()
        await stack.decide(item)
        parked = await until_stalled(stack, RunState.PARKED)
        calls = provider.calls

        async def is_dropped() -> bool:
            # The worker that parked it may own the thread for a moment longer.
            with suppress(ThreadUnavailable):
                return await stack.reviews.runs.drop(parked, "T0/U0ANA")
            return False

        await eventually(is_dropped)
        provider.error = None
        await stack.store.queue(stack.keys).put(RESUME)
        await stack.idle()
        assert provider.calls == calls
        assert await stack.events(EventName.RUN_FINISHED) == []
        await stack.say("hello")
        assert await stack.words() == "You said hello"

    assert await stack.reviews.runs.all() == []
    [event] = await stack.events(EventName.RUN_DROPPED)
    assert event.actor == "T0/U0ANA"


@pytest.mark.slow
async def test_a_retried_run_has_new_time(stack: Stack, provider: Provider) -> None:
    async with stack.working(retries=GIVING_UP):
        provider.error = RuntimeError()
        await stack.ask(("look_up", {"order": "1"}))
        parked = await until_stalled(stack, RunState.PARKED)
    assert await stack.reviews.runs.retry(parked, "cli/ana")
    tried = await stalled(stack)
    assert tried
    assert tried.retried_since_ms >= parked.at_ms > parked.retried_since_ms

    async with stack.working(retries=AT_ONCE):
        await provider.failed(times=provider.calls + 4)
        await until_stalled(stack, RunState.WAITING)
        provider.error = None

        assert await stack.words() == "found 1"
    assert len(await stack.events(EventName.RUN_RETRIED)) == 1


@pytest.mark.slow
async def test_a_job_that_no_process_serves_backs_off_and_is_listed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyturn.gateway.resume.retries.UNSERVED_S", 0.0)
    await stack.say("hello")
    stack.runners.clear()
    async with stack.working():
        found = await until_stalled(stack, RunState.WAITING)

    assert found.trouble == "unserved"
    assert found.reason.startswith("No process runs the agent")
    assert await stack.store.stalled.counts(stack.keys) == (1, 0)

    stack.runners["shop"] = stack.runner
    async with stack.working():
        assert await stack.words() == "You said hello"


RESUME = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
OLD_MS = int(RETENTION.total_seconds() * 1000) + 60_000


def place() -> RunRef:
    return RunRef(agent="shop", thread="t1")


async def aged(stack: Stack) -> None:
    """Move all times of the run into the distant past."""
    keys, conn, run = stack.keys, stack.store.conn, stack.keys.stalled_run("shop", "t1")
    row = json.loads(text(await conn.command("HGET", keys.stalled, run)))
    moments = {name: row[name] - OLD_MS for name in row if name.endswith("_ms")}
    old = {name: max(0, at_ms) for name, at_ms in moments.items()}
    kept = StalledRun.model_validate_json(json.dumps({**row, **old}))
    await conn.command("HSET", keys.stalled, run, kept.model_dump_json())


async def parked(stack: Stack) -> None:
    """Make the run fail with a permanent error."""
    await Retries(stack.store).failed(place(), KeyError(), left=RESUME)


async def is_kept(stack: Stack) -> bool:
    """Remove old runs in another process; return whether the run still exists."""
    await Retries(stack.store).forget_old()
    found = await stack.store.stalled.find(
        stack.keys, stack.keys.stalled_run("shop", "t1")
    )
    return found is not None


async def test_a_parked_run_is_forgotten_when_its_approvals_are(stack: Stack) -> None:
    await parked(stack)
    assert await is_kept(stack)
    await aged(stack)

    assert not await is_kept(stack)
    assert len(await stack.events(EventName.RUN_DROPPED)) == 1


@pytest.mark.parametrize("state", ["pending", "in_doubt"])
async def test_a_run_that_people_owe_a_word_is_kept(stack: Stack, state: str) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
    approval = item.id.rpartition(".")[0]
    if state == "in_doubt":  # nothing of it happens by itself
        head = stack.keys.head(approval)
        await stack.store.conn.command("HSET", head, "0:s", state)
        await stack.store.conn.command(
            "ZREM", stack.keys.expiry, stack.keys.listed(approval)
        )
    await parked(stack)
    await aged(stack)

    assert await is_kept(stack)


NOW_OR_NEVER = load_policy("version: 1\n", "policy.yml")


async def kept_of(stack: Stack, run: str) -> str:
    """Return the stored fields of a run."""
    return text(await stack.store.conn.command("HGET", stack.keys.stalled, run))


async def failed(stack: Stack, thread: str = "t2") -> str:
    """Make the run of a thread fail; return its id."""
    at = RunRef(agent="shop", thread=thread)
    left = RESUME.with_(thread=thread)
    await Retries(stack.store).failed(at, KeyError(), left=left)
    return stack.keys.stalled_run("shop", thread)


async def changed(stack: Stack, run: str, **fields: object) -> None:
    """Write fields into a run's record, past our scripts."""
    body = json.dumps({**json.loads(await kept_of(stack, run)), **fields})
    await stack.store.conn.command("HSET", stack.keys.stalled, run, body)


def service(stack: Stack) -> RunService:
    return RunService(stack.store, lambda: NOW_OR_NEVER)


async def test_a_thread_whose_failed_run_nobody_can_read_goes_on(stack: Stack) -> None:
    run = await failed(stack, "t1")
    await changed(stack, run, of_nobody=1)

    async with stack.working():
        await stack.say("hello")
        await stack.words()
        await stack.idle()
    assert await kept_of(stack, run) == ""
    assert await stack.store.stalled.counts(stack.keys) == (0, 0)


async def test_what_is_no_record_at_all_is_left_out(stack: Stack) -> None:
    other = await failed(stack)
    junk: list[str | bytes] = ["", "[]", "[" * 100_000, "{", "null", b"\xff"]
    runs = [
        stack.keys.stalled_run("shop", f"junk-{number}") for number in range(len(junk))
    ]
    for run, body in zip(runs, junk, strict=True):
        await stack.store.conn.command("HSET", stack.keys.stalled, run, body)
    await stack.store.conn.command("HSET", stack.keys.stalled, b"\xff", "{}")

    assert [one.id for one in await service(stack).all()] == [other]
    assert await service(stack).find(runs[5]) is None
    assert await stack.store.conn.command("HEXISTS", stack.keys.stalled, runs[5]) == 0


class Cut:
    """Submissions that reach the store, whose answers do not come back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
        self.left = times
        self._submit = AgentService.submit
        monkeypatch.setattr(AgentService, "submit", self._cut(self._submit))
        monkeypatch.setattr(bridge, "FIRST_PAUSE_S", 0.001)

    def _cut(self, submit: Any) -> Any:
        async def cut(service: AgentService, turn: Any) -> Any:
            verdicts = await submit(service, turn)
            if self.left:
                self.left -= 1
                raise StoreUnavailable("The store does not answer.")
            return verdicts

        return cut


async def test_a_call_is_asked_about_when_the_store_is_back(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = Cut(monkeypatch, times=2 * bridge.PORT_TRIES)
    async with stack.working(retries=AT_ONCE):
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.decide(item)

        assert await stack.words() == "refunded 78291 899"
        await stack.idle()

    assert cut.left == 0
    assert len(sample_tools.ledger()) == 1
    assert await stack.events(EventName.RUN_WAITING)
    # The calls with lost answers have ended; no one can decide them any more.
    states = [one.state for one in await stack.items()]
    assert states.count(ItemState.EXECUTED) == 1
    assert not {ItemState.PENDING, ItemState.AUTHORIZED} & set(states)
