"""In outages of any kind and length, each run ends with its result or visibly parked.

Time is scaled: pauses and outages take a thousandth of their real length, and Slack's
clock is moved, so there are no sleeps. A seed makes the plan of a test; the concurrent
work is as random as the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from langchain_core.messages import AIMessage, BaseMessage

from keyturn.bot.cards.channel_messages import RUN_TEXTS, agent_answer
from keyturn.bot.ids import Action
from keyturn.bot.limits import POST
from keyturn.bot.web import Slack, SlackNoResponse
from keyturn.gateway.approvals.decisions import Approve, Click, Decision, Reconcile
from keyturn.gateway.approvals.events import TROUBLED_RUN, Event, EventName
from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import LangGraphLocal
from keyturn.gateway.running import running
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.store.outbox import START, EventTail
from keyturn.gateway.store.store import Store
from tests.bot.bot_stack import Stack
from tests.conftest import eventually
from tests.levels import size
from tests.resume import sample_tools
from tests.resume.resume_stack import ANA, DAN, RULES
from tests.store_secrets import SECRETS
from tests.streams import announced

CHANNEL = "C0GENERAL"
SCALED = RetrySettings(
    first=timedelta(milliseconds=2),
    longest=timedelta(milliseconds=60),
    notify_after=timedelta(milliseconds=5),
)
BROKEN = "broken"
KINDS = ("model", "checkpoints", "store", "slack")
LEASE_MS = 1500
PATIENCE_S = size(deep=300, short=60)
REQUEST = httpx.Request("POST", "https://model.example/v1")
ERRORS: tuple[Callable[[], Exception], ...] = (
    ConnectionError,
    TimeoutError,
    lambda: httpx.ConnectError("refused"),
    lambda: httpx.HTTPStatusError(
        "overloaded", request=REQUEST, response=httpx.Response(503, request=REQUEST)
    ),
    lambda: RuntimeError("nobody knows this one"),
)


@dataclass
class Outages:
    """The current outages, and their counts."""

    rng: random.Random
    away: set[str] = field(default_factory=set[str])
    hits: dict[str, int] = field(default_factory=dict[str, int])

    def check(self, what: str, error: Callable[[], Exception] | None = None) -> None:
        """Fail like the dependency in outage."""
        if what in self.away:
            self.hits[what] = self.hits.get(what, 0) + 1
            make = error or self.rng.choice(ERRORS)
            raise make()

    async def was_needed(self, what: str) -> bool:
        """Return whether a dependency was needed during its outage."""
        return what in self.hits

    async def play(self, times: int) -> None:
        """Start and end outages this many times.

        First each dependency alone, until it was needed.
        """
        first = self.rng.sample(KINDS, len(KINDS))
        for number in range(times):
            is_first = number < len(first)
            what = first[number] if is_first else self.rng.choice(KINDS)
            self.away.add(what)
            await asyncio.sleep(self.rng.uniform(0.02, 0.3))
            if is_first:
                await eventually(partial(self.was_needed, what))
            if is_first or self.rng.random() < 0.7:
                self.away.discard(what)
            await asyncio.sleep(self.rng.uniform(0, 0.1))
        self.away.clear()


@pytest.fixture(autouse=True)
def _ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "ledger.txt"))


def break_things(outages: Outages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cause the outages of the model, the store and Slack as planned."""
    answer, call = sample_tools.answer, Slack.call
    command, together = Connection.command, Connection.transaction
    evalsha = Connection.evalsha

    def answered(messages: list[BaseMessage]) -> AIMessage:
        outages.check("model")
        found = answer(messages)
        if not found.tool_calls and BROKEN in str(found.text):
            raise KeyError(BROKEN)
        return found

    async def called(self: Slack, method: str, **arguments: object) -> Any:
        if "slack" in outages.away and outages.rng.random() < 0.1:
            await call(self, method, **arguments)  # only its answer gets lost
        outages.check("slack", lambda: SlackNoResponse(method, "it is away"))
        return await call(self, method, **arguments)

    def unavailable() -> StoreUnavailable:
        return StoreUnavailable("The store is away.")

    async def commanded(self: Connection, *words: Any) -> Any:
        outages.check("store", unavailable)
        return await command(self, *words)

    async def done_together(self: Connection, *commands: Any) -> Any:
        outages.check("store", unavailable)
        return await together(self, *commands)

    async def run_script(self: Connection, *given: Any, **options: Any) -> Any:
        outages.check("store", unavailable)
        return await evalsha(self, *given, **options)

    monkeypatch.setattr(sample_tools, "answer", answered)
    monkeypatch.setattr(Slack, "call", called)
    monkeypatch.setattr(Connection, "command", commanded)
    monkeypatch.setattr(Connection, "transaction", done_together)
    monkeypatch.setattr(Connection, "evalsha", run_script)


def break_checkpoints(outages: Outages, saver: Any) -> None:
    """Cause the outages of the checkpoints as planned."""

    def wrapped(real: Any) -> Any:
        async def away(*args: Any, **options: Any) -> Any:
            outages.check("checkpoints", ConnectionError)
            return await real(*args, **options)

        return away

    for name in ("aget_tuple", "aput", "aput_writes"):
        setattr(saver, name, wrapped(getattr(saver, name)))


@asynccontextmanager
async def in_background(*tasks: Any) -> AsyncGenerator[None]:
    """Do all of this while the block runs."""
    started = [asyncio.create_task(one) for one in tasks]
    try:
        yield
    finally:
        for one in started:
            one.cancel()
        await asyncio.gather(*started, return_exceptions=True)


class Shop:
    """The agent's side, the bot's, and the people."""

    def __init__(self, stack: Stack, outages: Outages) -> None:
        self.stack = stack
        self.outages = outages
        self.stack.policy = RULES
        self.threads: dict[str, str] = {}
        self.orders: dict[str, str] = {}

    async def ask(self, thread: str, order: str) -> None:
        """Request a refund as Dan, as often as necessary."""
        ts = await self.stack.actor("U0DAN").say("#general", f"refund {order}")
        self.threads[thread] = ts
        self.orders[thread] = order
        text = json.dumps([["refund", {"order": order, "amount": 5}]])
        origin = Origin(channel=CHANNEL, thread_ts=ts)
        while True:
            with contextlib.suppress(StoreUnavailable):
                await self.stack.reviews.ask_agent(
                    "shop",
                    thread,
                    text,
                    requester=DAN,
                    origin=origin,
                    message_key=thread,
                )
                return
            await asyncio.sleep(0.01)

    async def people(self) -> None:
        """Approve pending calls, and reconcile doubts by the shop's ledger."""
        tail, after = EventTail(self.stack.store.conn, self.stack.keys), START
        while True:
            try:
                events, after = await tail.read(after, block_ms=50)
            except StoreUnavailable:
                await asyncio.sleep(0.01)
                continue
            for event in events:
                await self._react(event)

    async def _react(self, event: Event) -> None:
        names = {EventName.APPROVAL_OPENED, EventName.ITEM_IN_DOUBT}
        while event.name in names:
            with contextlib.suppress(StoreUnavailable):
                loaded = await self.stack.reviews.read(event.approval)
                assert loaded
                [item] = loaded.approval.items
                decision: Decision = Approve()
                if item.state is ItemState.IN_DOUBT:
                    order = str(item.args["order"])
                    has_run = any(
                        order in line.split() for line in sample_tools.ledger()
                    )
                    finding = Finding.EXECUTED if has_run else Finding.RERUN
                    decision = Reconcile(finding=finding)
                click = Click(
                    approval=event.approval,
                    index=0,
                    version=loaded.approval.version,
                    action_hash=item.action_hash,
                )
                await self.stack.reviews.decide(click, decision, ANA)
                return
            await asyncio.sleep(0.01)

    async def moving_clock(self) -> None:
        """Let minutes pass in Slack."""
        while True:
            self.stack.sandbox.clock.advance(3.0)
            await asyncio.sleep(0.01)

    async def ends(self) -> dict[str, str]:
        """Return how each thread ended: with words, parked, or not at all."""
        found = dict.fromkeys(self.threads, "")
        for event in await announced(self.stack.store.conn, self.stack.keys):
            if event.name is EventName.RUN_FINISHED and event.thread in found:
                found[event.thread] = "words"
        for run in await self.stack.reviews.runs.all():
            found[run.thread] = run.state.value
        return found

    async def is_over(self) -> bool:
        """Return whether every run has ended, and no job is left."""
        ended = set((await self.ends()).values()) <= {"words", "parked"}
        return ended and await self.stack.store.queue(self.stack.keys).depth() == 0

    async def left(self) -> tuple[dict[str, str], int]:
        """Return the runs that have not ended, and how many jobs are left."""
        found = await self.ends()
        open_ = {one: end for one, end in found.items() if end in {"", "waiting"}}
        return open_, await self.stack.store.queue(self.stack.keys).depth()

    def said(self, thread: str) -> list[tuple[str, str, str]]:
        """Return the bot's messages in a thread: ts, text and blocks."""
        messages = self.stack.sandbox.workspace.messages[CHANNEL].values()
        root = self.threads[thread]
        return [
            (one.ts, one.text, json.dumps(one.blocks))
            for one in messages
            if one.thread_ts == root and one.ts != root
        ]


async def play(
    stack: Stack, tmp_path: Path, patch: pytest.MonkeyPatch, *, seed: int, runs: int
) -> tuple[Shop, dict[str, str]]:
    """Play runs through random outages; return how each ended."""
    outages = Outages(random.Random(seed))  # noqa: S311 - a test's plan
    store = Store(stack.store.conn.url, secrets=SECRETS, lease_ms=LEASE_MS)
    store.retries = SCALED
    shop_ = Shop(stack, outages)
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        graph: Any = attached(sample_tools.graph(), saver)
        runner = LangGraphLocal(graph)
        break_things(outages, patch)
        async with (
            stack.running(),
            running(store, lambda: RULES, {"shop": runner}, slots=4),
            in_background(shop_.people(), shop_.moving_clock()),
        ):
            # The runner writes through a separate, fenced saver.
            break_checkpoints(outages, cast("Any", runner)._graph.checkpointer)
            playing = asyncio.create_task(outages.play(times=runs))
            for number in range(runs):
                is_broken = outages.rng.random() < 0.1
                name = f"{BROKEN}{number}" if is_broken else f"order{number}"
                await shop_.ask(f"t{number}", name)
            await playing
            try:
                await eventually(shop_.is_over, within_s=PATIENCE_S)
            except TimeoutError:
                pytest.fail(f"These did not end: {await shop_.left()}")
            ended = await shop_.ends()
            await eventually(lambda: is_told(shop_, ended), within_s=PATIENCE_S)
    await store.close()
    return shop_, ended


async def is_told(shop_: Shop, ended: dict[str, str]) -> bool:
    """Return whether Slack shows each end."""
    words = agent_answer("").text
    for thread, end in ended.items():
        texts = [text for _, text, _ in shop_.said(thread)]
        wanted = words if end == "words" else RUN_TEXTS[EventName.RUN_PARKED]
        is_late = RUN_TEXTS[EventName.RUN_WAITING] in texts
        if wanted not in texts or is_late:
            return False
    return True


async def check(shop_: Shop, ended: dict[str, str]) -> None:
    """Compare every message with the facts."""
    assert set(ended.values()) <= {"words", "parked"}
    outages: dict[str, set[str]] = {}
    for event in await announced(shop_.stack.store.conn, shop_.stack.keys):
        if event.name in TROUBLED_RUN:
            outages.setdefault(event.thread, set()).add(event.data["outage"])
    went_on = RUN_TEXTS[EventName.RUN_RESUMED]
    stopped = RUN_TEXTS[EventName.RUN_PARKED]
    for thread, end in ended.items():
        of_runs = [one for one in shop_.said(thread) if one[1] in RUN_TEXTS.values()]
        texts = [text for _, text, _ in of_runs]
        assert len(of_runs) <= len(outages.get(thread, ())), thread
        assert texts.count(stopped) == int(end == "parked"), (thread, texts)
        assert set(texts) <= {went_on, stopped}, (thread, texts)
        for _, text, blocks in of_runs:
            assert (Action.TRY_AGAIN.value in blocks) == (text == stopped)
    orders = [line.split()[1] for line in sample_tools.ledger()]
    assert sorted(orders) == sorted(set(orders)), "a refund ran twice"
    for thread, order in shop_.orders.items():
        if order not in orders:
            # The request failed during the store's outage, and the agent was informed.
            blocks = " ".join(blocks for _, _, blocks in shop_.said(thread))
            assert f"refunded {order}" not in blocks
            assert ended[thread] == "parked" or "did not run" in blocks, blocks


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_each_run_ends_with_its_words_or_visibly_parked(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        runs = size(deep=100, short=20)
        played, ended = await play(stack, tmp_path, patch, seed=1, runs=runs)

    await check(played, ended)
    assert set(played.outages.hits) == set(KINDS)
    assert [call for call in played.stack.sandbox.calls if call.method == POST]
