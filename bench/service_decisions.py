"""Measure decisions per second in the service against the script that records them.

Fifty deciders approve calls at once, in two ways, in turns, on one durable Valkey:

- Twokey: `ReviewService.decide`, whole: reading, judging by the policy, the script.
- the raw script: the same invocations of the same script, recorded from a run of the
  service on the same approvals, sent by a client that does nothing else. This is the
  limit of one Python process with one server: nothing is read and nothing is judged.

The store is put back between the runs, so that each approval is decided in each of
them, and every reply must say that the decision was recorded.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import hiredis

from bench.progress import progress
from bench.restored import restore, saved
from bench.stats import Figure, Measured, NotMeasured, ratio
from bench.store_secrets import SECRETS
from twokey.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Click,
    Decided,
    Reviewer,
)
from twokey.gateway.approvals.record import approval_of
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.store import Store

TITLE = "Decisions in the service"
DECIDERS = 50

_POLICY = load_policy(
    """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0BENCH, reviewers: [U0ANA]}
protect: {pending_per_agent: 10000, requests_per_10m: 100000}
tools: {refund: {tier: approve}}
""",
    "bench.yml",
)
_ANA = Reviewer(team="T0", user="U0ANA", account=AccountKind.MEMBER)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_LINE_LIMIT = 1 << 22
_NOW = b"now"
"""Stands in a recorded script for the moment of the reading."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: rounds, and approvals decided in each."""

    rounds: int
    approvals: int


FULL = Plan(rounds=5, approvals=500)
QUICK = Plan(rounds=1, approvals=60)


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both in turns and compare them."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Run both as often as the plan says."""
    ours: list[tuple[float, ...]] = []
    raw: list[tuple[float, ...]] = []
    with TemporaryDirectory(prefix="tk-bench-") as folder:
        async with open_store(None, Path(folder), secrets=SECRETS) as store:
            for turn in range(plan.rounds):
                progress(f"service decisions: round {turn + 1} of {plan.rounds}")
                clicks = await _opened(store, plan.approvals, turn)
                kept = await saved(store)
                scripts = await _recorded(store, clicks)
                await restore(store, kept)
                raw.append((await _raw(store, scripts),))
                await restore(store, kept)
                # As a process that starts: the first one would take what was put
                # back for a replay of older records.
                other = Store(store.conn.url, secrets=store.conn.secrets)
                ours.append((await _service(other, clicks),))
                await other.close()
    service, script = (
        Measured("Twokey", "/s", tuple(ours)),
        Measured("the raw script", "/s", tuple(raw)),
    )
    return Figure(
        TITLE,
        f"{plan.rounds} rounds of {plan.approvals} decisions by {DECIDERS} deciders at "
        "once, one process; Valkey with appendfsync always.",
        (service, script),
        (
            ratio(
                f"decisions/s in the service / raw script, {DECIDERS} deciders",
                service,
                script,
                at_least=0.25,
                limit=f"the raw script: {script.at(0.5):,.0f}/s",
            ),
        ),
    )


async def _opened(store: Store, count: int, turn: int) -> list[Click]:
    """Empty the store, and return a click for each approval that is opened in it.

    Each round has threads of its own: the same approval opened again would be taken for
    a replay of an older record.
    """
    await store.conn.command("FLUSHALL")
    agents = AgentService(store, lambda: _POLICY)
    reviews = ReviewService(store, lambda: _POLICY)
    clicks: list[Click] = []
    for number in range(count):
        ref = TurnRef(agent="support", thread=f"t{turn}.{number}", message_id="m")
        call = ProposedCall(tool="refund", args={"amount": number}, tool_call_id="c")
        (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
        loaded = await reviews.read(approval_of(verdict.item_id)[0])
        if loaded is None:
            raise NotMeasured("A call was not held.")
        (item,) = loaded.approval.items
        clicks.append(
            Click(
                approval=loaded.approval.id,
                index=0,
                version=loaded.approval.version,
                action_hash=item.action_hash,
            )
        )
    return clicks


async def _recorded(store: Store, clicks: Sequence[Click]) -> list[tuple[bytes, ...]]:
    """Decide one by one; return the command by which each decision was written."""
    found: list[tuple[bytes, ...]] = []
    began_ms = await store.conn.now_ms("")
    reviews = ReviewService(store, lambda: _POLICY)
    place = unquote(urlsplit(store.conn.url).path)
    reader, writer = await asyncio.open_unix_connection(place, limit=_LINE_LIMIT)
    try:
        writer.write(b"MONITOR\r\n")
        await reader.readline()
        for number, click in enumerate(clicks):
            await _decide(reviews, click)
            mark = f"bench:{number}".encode()
            await store.conn.command("ECHO", mark)
            seen: list[tuple[bytes, ...]] = []
            while (words := _words(await reader.readline())) != (b"ECHO", mark):
                if words[:1] == (b"EVALSHA",):
                    seen.append(words)
            # The script that writes the decision carries the whole next version.
            found.append(max(seen, key=lambda one: sum(map(len, one))))
    finally:
        writer.close()
    if len({one[1] for one in found}) != 1:
        raise NotMeasured("The decisions were written by different scripts.")
    read_ms = range(began_ms, await store.conn.now_ms("") + 1)
    return [
        tuple(_NOW if _is_time(one, read_ms) else one for one in row) for row in found
    ]


def _is_time(word: bytes, within: range) -> bool:
    return word.isdigit() and int(word) in within


def _words(line: bytes) -> tuple[bytes, ...]:
    """Return the words of a line of MONITOR, which escapes all but printable ASCII."""
    return tuple(
        one.decode("unicode_escape").encode("latin-1") for one in _WORD.findall(line)
    )


async def _service(store: Store, clicks: Sequence[Click]) -> float:
    """Return how many decisions a second the service makes."""
    reviews = ReviewService(store, lambda: _POLICY)
    for click in clicks:
        # The publisher of the same process reads each record to draw its card.
        await reviews.read_as_of_now(click.approval)
    waiting = iter(clicks)

    async def decide(click: Click) -> None:
        await _decide(reviews, click)

    return await _per_second(waiting, [decide] * DECIDERS, len(clicks))


async def _decide(reviews: ReviewService, click: Click) -> None:
    outcome = await reviews.decide(click, Approve(), _ANA)
    if not isinstance(outcome, Decided):
        raise NotMeasured(f"A decision ended with {type(outcome).__name__}.")


async def _raw(store: Store, scripts: Sequence[tuple[bytes, ...]]) -> float:
    """Return how many of the scripts a second the server runs for a plain client."""
    async with _connections(store, DECIDERS) as clients:
        # A script refuses what was computed from an old reading.
        now = str(await store.conn.now_ms("")).encode()
        waiting = iter(
            [tuple(now if one is _NOW else one for one in row) for row in scripts]
        )

        def sends(client: _RawClient) -> Callable[[tuple[bytes, ...]], Awaitable[None]]:
            async def send(words: tuple[bytes, ...]) -> None:
                reply = await client.ask(*words)
                if reply[0] != b"done":
                    raise NotMeasured(f"The raw script answered {reply!r}.")

            return send

        return await _per_second(waiting, [sends(one) for one in clients], len(scripts))


async def _per_second(
    waiting: Iterator[T], workers: Sequence[Callable[[T], Awaitable[None]]], count: int
) -> float:
    async def work(handle: Callable[[T], Awaitable[None]]) -> None:
        for one in waiting:
            await handle(one)

    began = time.perf_counter()
    await asyncio.gather(*map(work, workers))
    return count / (time.perf_counter() - began)


class _RawClient(asyncio.Protocol):
    """A connection that sends one command at a time and parses its reply."""

    def __init__(self) -> None:
        self._replies = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Any] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; see `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer who waits once the reply is whole."""
        self._replies.feed(data)
        reply: Any = self._replies.gets()
        if reply is not False and self._waiter is not None:
            self._waiter.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail who waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(NotMeasured(f"The store hung up: {exc}."))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def ask(self, *words: bytes) -> Any:  # noqa: ANN401 - a reply of any type
        """Send one command and return its reply.

        Raises:
            NotMeasured: when the reply is an error.
        """
        assert self._transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(_packed(words))
        reply = await self._waiter
        if isinstance(reply, hiredis.ReplyError):
            raise NotMeasured(f"The store refused {words[0].decode()}: {reply}.")
        return reply


@asynccontextmanager
async def _connections(store: Store, count: int) -> AsyncGenerator[list[_RawClient]]:
    """Connect that often to the socket of the embedded server."""
    place = unquote(urlsplit(store.conn.url).path)
    loop = asyncio.get_running_loop()
    clients = [
        (await loop.create_unix_connection(_RawClient, place))[1] for _ in range(count)
    ]
    try:
        yield clients
    finally:
        for one in clients:
            one.close()


def _packed(words: Sequence[bytes]) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)
