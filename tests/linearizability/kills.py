"""Decide by signed clicks while every process is killed in turn, and record it.

A master with two replicas, three Sentinels, two bots, two gateways with checkpoints in
Postgres: all are real programs and are killed with SIGKILL, one after another, while
two people at a time click on each approval. A bot's log entry "decided" counts as the
reply to the person; a click without a known reply is open.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import aiohttp

from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Person, RunRef
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.connection.durability import ensure_durable
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.linearizability.audited import Moment
from tests.linearizability.clicking import Card, Clicker
from tests.linearizability.history import Operation
from tests.linearizability.killing import kill_nodes, kill_servers, revive
from tests.linearizability.reconciliation import Fate, reconciled
from tests.linearizability.recorded import Recorded
from tests.linearizability.servers import Server
from tests.linearizability.shop_agent import AGENT, EFFECTS, effects
from tests.ports import free_port
from tests.resume import postgres_server
from tests.store_secrets import SECRETS
from tests.streams import audit_entries
from tests.topologies import SentinelSet, programs, until

SECRET = SECRETS[0].hex()
PEOPLE = ("U0ANA", "U0BEN")
POLICY = """
version: 1
defaults: {tier: approve, expires_in: 8h, channel: C0APPROVALS, reviewers: support}
roles: {support: {users: [U0ANA, U0BEN]}}
protect: {pending_per_agent: 10000, requests_per_10m: 100000}
tools:
  refund: {tier: approve}
"""
SETTINGS = """
agents: {shop: {graph: "tests.linearizability.shop_agent:graph"}}
policy: policy.yml
"""
AT_ONCE = 120
"""Threads that are under way at a moment."""
_DAN = Person(team="T0SANDBOX", user="U0DAN", name="Dan")
_ASK_AGAIN_S = 0.1
_LOOK_AGAIN_S = 1.0
"""Rather long: all who wait look, and the processors are for those who work."""
_SAY_EVERY = 100
_END_S = 240.0
"""How long calls may go on after the last decision: leases have to end first."""
_OPENED_S = 240.0
"""How long an agent may take to ask: leases of gateways that are killed one after the
other have to end first, and a person who asks again sooner asks twice."""
_CLICK = aiohttp.ClientTimeout(total=5)
_ASKED_ANEW = frozenset({"superseded", "lapsed", "withdrawn"})
_OVER = _ASKED_ANEW | {"executed", "failed", "in_doubt"}
_LOGGED = re.compile(
    r"click\.decided decision=\S+ outcome=(\S+) approval=(\S+) index=\S+ user=(\S+)"
)

Found = TypeVar("Found")


async def record(
    folder: Path, *, decisions: int, within_s: float, say: Callable[[str], object]
) -> Recorded:
    """Run this many threads to a decision, while processes are killed.

    Threads that did not begin within the time, or before a signal SIGUSR1, are omitted.
    The whole recording is in the folder afterwards, also when this fails.

    Raises:
        NoPostgres: there is none.
    """
    found = Recorded()
    is_enough = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, is_enough.set)
    async with _started(folder) as whole:
        killing = asyncio.gather(
            kill_servers(whole.bots, whole.gateways, found.deaths),
            kill_nodes(whole.sentinels, found.deaths, say),
        )
        numbers = iter(range(decisions))
        ends = time.monotonic() + within_s

        async def people() -> None:
            for number in numbers:
                if is_enough.is_set() or time.monotonic() > ends:
                    return
                await _Run(whole, found, f"t{number}").decided()
                if number % _SAY_EVERY == 0:
                    say(f"{number} decided, killed: {found.killed}")

        try:
            try:
                await asyncio.gather(*(people() for _ in range(AT_ONCE)))
            finally:
                killing.cancel()
                await asyncio.gather(killing, return_exceptions=True)
            await asyncio.to_thread(whole.heal)
            await _look_at_ends(whole, found, found.threads)
            await _decide_what_lapsed(whole, found)
            found.moments += await _audited(whole.store)
        finally:
            _complete(found, folder, whole.servers)
    return found


def _complete(found: Recorded, folder: Path, servers: Sequence[Server]) -> None:
    """Add clicks and effects to the readings, and store all of it in files."""
    logs = [line for one in servers for line in one.lines]
    found.history += clicks_of(found.clicks, [(one.at, one.text) for one in logs])
    found.history += [
        replace(one, key=found.calls.get(one.key, one.key))
        for one in effects(folder / "effects")
    ]
    found.keep(folder)


def clicks_of(
    clicks: Sequence[tuple[str, str, int]], logged: Sequence[tuple[int, str]]
) -> list[Operation]:
    """Return the clicks with what bots logged of them.

    A person may have clicked several times on one approval, and which click a line is
    about is not in it: it counts from the first. Those without a line are open.
    """
    sent = dict[tuple[str, str], list[int]]()
    for approval, person, at in clicks:
        sent.setdefault((approval, person), []).append(at)
    found: list[Operation] = []
    for at, text in logged:
        if line := _LOGGED.search(text):
            outcome, approval, person = line.groups()
            times = sent[approval, person]
            found.append(Operation(approval, "click", (person,), times[0], at, outcome))
    told = Counter((one.key, str(one.given[0])) for one in found)
    for (approval, person), times in sent.items():
        left = sorted(times)[told[approval, person] :]
        found += [Operation(approval, "click", (person,), times[0]) for _ in left]
    return found


@dataclass
class _Whole:
    """Everything that runs."""

    store: Store
    sentinels: SentinelSet
    bots: list[Server]
    gateways: list[Server]
    urls: Iterator[str]
    clicker: Clicker
    http: aiohttp.ClientSession

    @property
    def servers(self) -> list[Server]:
        return [*self.bots, *self.gateways]

    def heal(self) -> None:
        """Wait until the store is whole again."""
        until(self.sentinels.is_whole, "all of the store is whole again")


@asynccontextmanager
async def _started(folder: Path) -> AsyncGenerator[_Whole]:
    async with AsyncExitStack() as opened:
        postgres = opened.enter_context(postgres_server.running())
        program = next(iter(programs().values()))
        sentinels = opened.enter_context(SentinelSet(program, folder / "nodes"))
        sandbox = await opened.enter_async_context(Sandbox())
        http = await opened.enter_async_context(aiohttp.ClientSession())
        (folder / "policy.yml").write_text(POLICY, "utf-8")
        settings = f"{SETTINGS}checkpoints: {postgres}\n"
        (folder / "keyturn.yml").write_text(settings, "utf-8")
        ports = [free_port(), free_port()]
        env = {
            **os.environ,
            EFFECTS: str(folder / "effects"),
            "KEYTURN_REDIS_URL": sentinels.url,
            "KEYTURN_SECRET": SECRET,
            "KEYTURN_SLACK_MODE": "http",
            "KEYTURN_SLACK_API_URL": sandbox.api_url,
            "SLACK_BOT_TOKEN": sandbox.bot_token,
            "SLACK_SIGNING_SECRET": sandbox.signing_secret,
        }
        store = Store(sentinels.url, secrets=SECRETS)
        opened.push_async_callback(store.close)
        await ensure_durable(store.conn)

        def started() -> tuple[list[Server], list[Server]]:
            bots = [
                Server(
                    f"bot-{at}", ["bot"], folder, {**env, "KEYTURN_SLACK_PORT": port}
                )
                for at, port in enumerate(map(str, ports))
            ]
            return bots, [
                Server(f"gateway-{at}", ["gateway"], folder, env) for at in range(2)
            ]

        bots, gateways = await asyncio.to_thread(started)
        for one in (*bots, *gateways):
            opened.callback(one.kill)
        urls = cycle(f"http://127.0.0.1:{port}/slack/events" for port in ports)
        clicker = Clicker(sandbox, store, SECRET)
        whole = _Whole(store, sentinels, bots, gateways, urls, clicker, http)
        reviving = asyncio.create_task(revive(whole.servers))
        try:
            yield whole
        finally:
            reviving.cancel()
            await asyncio.gather(reviving, return_exceptions=True)


@dataclass
class _Run:
    """One thread, from its message until its call is over."""

    whole: _Whole
    found: Recorded
    thread: str

    def __post_init__(self) -> None:
        policy = load_policy(POLICY, "policy.yml")
        self._reviews = ReviewService(self.whole.store, lambda: policy)

    async def decided(self) -> None:
        """Send a request to the agent; click as two people until one has decided."""
        for attempt in itertools.count():
            key = f"{self.thread}.{attempt}"
            await acknowledged(lambda: self._ask(key))  # noqa: B023 - used up at once
            approval = await self._opened()
            # Its agent could not reach the gateway and ended, or the message that came
            # in between superseded the call. A person asks again.
            if approval and await self._decided(approval) not in _ASKED_ANEW:
                return

    async def decided_anew(self) -> None:
        """Click on an approval that appears without a request, if there is one."""
        while approval := await self._opened():
            if await self._decided(approval) not in _ASKED_ANEW:
                return

    async def _ask(self, key: str) -> None:
        await self._reviews.ask_agent(
            AGENT, self.thread, self.thread,
            requester=_DAN, origin=None, message_key=key,
        )  # fmt: skip

    async def _decided(self, approval: Approval) -> str:
        self.found.threads[approval.id] = self.thread
        self.found.calls[approval.items[0].ctx.tool_call_id] = approval.id
        clicker = self.whole.clicker
        card: Card | None = None
        while True:
            state = await look(self.whole.store, self.found, approval.id)
            if state != "pending":
                return state
            if card is None:
                card = await acknowledged(lambda: clicker.post(approval))
            clicks = [self._click(approval.id, card, person) for person in PEOPLE]
            await asyncio.gather(*clicks)

    async def _opened(self) -> Approval | None:
        """Wait for an approval without clicks; None if none appears."""
        approvals, run = (
            self.whole.store.approvals,
            RunRef(agent=AGENT, thread=self.thread),
        )
        keys = self.whole.store.keys_of_tenant("default")
        ends = time.monotonic() + _OPENED_S
        while time.monotonic() < ends:
            listed = await acknowledged(lambda: approvals.of_run(keys, run))
            if listed and (newest := listed[-1].id) not in self.found.threads:
                loaded = await acknowledged(lambda: self._reviews.read(newest))
                return loaded.approval if loaded else None
            await asyncio.sleep(_LOOK_AGAIN_S)
        return None

    async def _click(self, approval: str, card: Card, person: str) -> None:
        headers, body = self.whole.clicker.click(card, person)
        self.found.clicks.append((approval, person, time.monotonic_ns()))
        try:
            async with self.whole.http.post(
                next(self.whole.urls), data=body, headers=headers, timeout=_CLICK
            ) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            # Its bot is being started again.
            await asyncio.sleep(_ASK_AGAIN_S)


async def look(store: Store, found: Recorded, approval: str) -> str:
    """Read the state and the decider of an approval; record both."""
    called = time.monotonic_ns()
    loaded = await acknowledged(lambda: store.approvals.load(approval))
    assert loaded is not None, approval
    item = loaded.approval.items[0]
    by = item.decision.by.user if item.decision else ""
    output = (item.state.value, by)
    ended = time.monotonic_ns()
    found.history.append(Operation(approval, "read", (), called, ended, output))
    return item.state.value


async def _decide_what_lapsed(whole: _Whole, found: Recorded) -> None:
    """Click on repeated requests of models whose approved calls could not run."""
    lapsed = [
        one.thread
        for one in reconciled(found.history, found.threads)
        if one.fate is Fate.LAPSED
    ]
    before = set(found.threads)
    await asyncio.gather(*(_Run(whole, found, one).decided_anew() for one in lapsed))
    await _look_at_ends(whole, found, set(found.threads) - before)


async def _look_at_ends(
    whole: _Whole, found: Recorded, approvals: Iterable[str]
) -> None:
    """Wait until every call is over; read each before and after."""
    left, ends = [*approvals], time.monotonic() + _END_S
    while left and time.monotonic() < ends:
        states = [await look(whole.store, found, one) for one in left]
        pairs = zip(left, states, strict=True)
        left = [one for one, state in pairs if state not in _OVER]
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _audited(store: Store) -> list[Moment]:
    keys = store.keys_of_tenant("default")
    entries = await acknowledged(lambda: audit_entries(store.conn, keys))
    return [Moment(one.approval, one.name.value, one.at_ms) for one in entries]


async def acknowledged(work: Callable[[], Awaitable[Found]]) -> Found:
    """Do something until the store acknowledges it."""
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await asyncio.sleep(_ASK_AGAIN_S)
