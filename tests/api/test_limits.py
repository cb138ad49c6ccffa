"""The API's limits: floods, slow clients, a stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from keyturn.gateway.api.operations import stored_bytes
from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.guarded_server import Limits
from keyturn.gateway.protocol import http_api
from keyturn.gateway.protocol.http_api import OPERATIONS, Scope
from keyturn.gateway.protocol.http_problems import TOO_MANY, ProblemKind
from keyturn.gateway.protocol.wire import Claimed, ProposedCall, Turn, TurnRef
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ANA, ServiceHarness

REF = TurnRef(agent="support", thread="t1", message_id="m1")
CALL = ProposedCall(tool="process_refund", args={"amount": 1}, tool_call_id="c1")
SUBMIT = http_api.SUBMIT.question.dump_json(Turn(ref=REF, calls=(CALL,)))
NOTE = b'{"agent":"support"}'


@pytest.fixture
async def client(stack: ApiStack) -> AsyncGenerator[httpx.AsyncClient]:
    async with stack.client() as found:
        yield found


async def test_a_repeated_withdrawal_gets_its_answer(client: httpx.AsyncClient) -> None:
    [verdict] = (await client.post("/v1/submit", content=SUBMIT)).json()
    run = {"agent": "support", "thread": "t1"}
    asked = {"run": run, "item_ids": [verdict["item_id"], "ap_other.0"]}
    replies = [await client.post("/v1/withdraw", json=asked) for _ in range(2)]
    others = [
        {"run": {**run, "thread": "t2"}, "item_ids": [verdict["item_id"]]},
        {"run": run},
    ]
    empty = [await client.post("/v1/withdraw", json=one) for one in others]

    assert [one.json() for one in replies] == [[verdict["item_id"]]] * 2
    assert [one.json() for one in empty] == [[], []]


async def test_a_flood_of_one_key_is_refused_and_no_other(
    stack: ApiStack, client: httpx.AsyncClient
) -> None:
    stack.api.limits = RateLimits(60, clock_s=lambda: 0.0)
    replies = [await client.post("/v1/note", content=NOTE) for _ in range(25)]
    other = {"Authorization": f"Bearer {stack.key()}"}
    reply = await client.post("/v1/note", content=NOTE, headers=other)

    assert [one.status_code for one in replies] == [200] * 20 + [429] * 5
    assert replies[-1].json()["type"].endswith(":too-many-requests")
    assert int(replies[-1].headers["Retry-After"]) >= 1
    assert reply.status_code == 200


def test_what_counts_more_has_to_come_back_first() -> None:
    now = [0.0]
    limits = RateLimits(60, clock_s=lambda: now[0])
    limits.take("a")
    limits.count_more("a", 29)

    now[0] = 10.0
    with pytest.raises(Refusal) as caught:
        limits.take("a")
    now[0] = 11.0
    limits.take("a")

    assert caught.value.headers["Retry-After"] == "1"


async def chunks() -> AsyncGenerator[bytes]:
    """Yield a body whose length is not known before it is read."""
    yield NOTE


MANY = http_api.SUBMIT.question.dump_json(Turn(ref=REF, calls=(CALL,) * 200))


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/note", NOTE.ljust(20 * 64 * 1024)),
        ("/v1/submit", MANY),
        ("/v1/note", chunks),
    ],
)
async def test_a_large_request_counts_as_several(
    stack: ApiStack, client: httpx.AsyncClient, path: str, content: Any
) -> None:
    stack.api.limits = RateLimits(1)

    body: Any = content() if callable(content) else content
    large = await client.post(path, content=body)
    another = await client.post("/v1/note", content=NOTE)

    assert (large.status_code, another.status_code) == (200, 429)


async def test_so_many_requests_of_a_key_wait(
    stack: ApiStack, client: httpx.AsyncClient
) -> None:
    stack.api.limits = RateLimits(6000, most_waits=4)
    tasks = [
        asyncio.create_task(client.get("/v1/events", params={"wait": 30}))
        for _ in range(2)
    ]
    await asyncio.wait(tasks, timeout=0.3)
    refused = await client.get("/v1/events", params={"wait": 30})
    stack.api.tenant.events.end_waits()
    answered = await asyncio.gather(*tasks)

    assert refused.status_code == 429
    assert [one.status_code for one in answered] == [200, 200]


async def test_slow_clients_are_cut_off_and_keep_nobody_out(store: Store) -> None:
    limits = Limits(connections=20, header_s=0.3, body_s=0.3, body_bytes=1000)
    async with serving(ServiceHarness(store), limits=limits) as stack:
        host, _, port = stack.url.removeprefix("http://").partition(":")
        key = f"Authorization: Bearer {stack.key()}\r\n".encode()
        slow = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
        for number, (_, writer) in enumerate(slow):
            start = b"POST /v1/note HTTP/1.1\r\nHost: x\r\n" + key
            body = b"Content-Length: 100\r\n\r\n{"
            writer.write(start + (body if number % 2 else b""))
        async with httpx.AsyncClient(base_url=stack.url) as client:
            health = await client.get("/healthz")
        async with asyncio.timeout(30):
            ends = await asyncio.gather(
                *(reader.read(-1) for reader, _ in slow), return_exceptions=True
            )
        for _, writer in slow:
            writer.close()

    assert health.status_code == 200
    answered = [one for one in ends if isinstance(one, bytes) and one]
    assert all(b" 408 " in one and b"problem+json" in one for one in answered)


async def test_a_stop_takes_no_work(stack: ApiStack, client: httpx.AsyncClient) -> None:
    stack.api.is_stopping = True
    reply = await client.post("/v1/submit", content=SUBMIT)
    ready = await client.get("/readyz")
    health = await client.get("/healthz")

    assert reply.status_code == 503
    assert reply.json()["type"].endswith(":stopping")
    assert reply.headers["Retry-After"] == "1"
    assert ready.status_code == 503
    assert health.status_code == 200


def test_waits_of_many_keys_leave_room_for_those_of_others() -> None:
    limits = RateLimits(6000, most_waits=12)
    with ExitStack() as waits:

        def wait(key: str) -> ProblemKind | None:
            try:
                waits.enter_context(limits.waiting(key))
            except Refusal as refusal:
                return refusal.kind if "Retry-After" in refusal.headers else None
            return None

        taken = {
            key: [wait(key) for _ in range(20)].count(None) for key in "abcdefghijkl"
        }

        # Each flood leaves room for the next client.
        assert taken["a"] == 6
        assert [taken[key] for key in "bcd"] == [3, 2, 1]
        assert sum(taken.values()) == 12
        assert (wait("a"), wait("z")) == (TOO_MANY, TOO_MANY)

    # They have ended.
    with limits.waiting("z"):
        pass


MB = 1_000_000


@pytest.mark.parametrize("size", [1, 40_000, 400_000])
@pytest.mark.parametrize(("ends_work", "most"), [(False, 2 * MB), (True, 3 * MB)])
def test_a_days_storage_is_bounded(size: int, most: int, *, ends_work: bool) -> None:
    now = [0.0]
    limits = RateLimits(60, megabytes_per_day=2, clock_s=lambda: now[0])
    stored, refusals = 0, list[Refusal]()
    for minute in range(24 * 60):
        now[0] = minute * 60.0
        for _ in range(100):
            try:
                limits.store("a", size, ends_work=ends_work)
            except Refusal as refusal:
                refusals.append(refusal)
                break
            stored += size

    assert stored <= most + size
    assert stored >= min(most, 24 * 60 * 100 * size) - 2 * size
    assert all("2 MB in a day" in one.detail for one in refusals)
    assert all(int(one.headers["Retry-After"]) >= 1 for one in refusals)
    limits.store("b", size)


def test_every_operation_that_writes_counts() -> None:
    counted = {one.name for one in OPERATIONS if stored_bytes(one, 0, b"{}")}
    writes = {one.name for one in OPERATIONS if one.scope is not Scope.READ}
    assert writes - counted == {"heartbeat", "attend", "settle", "thread_lease"}


def turn_of_size(number: int, size: int) -> Turn:
    call = ProposedCall(tool="process_refund", args={"x": "x" * size}, tool_call_id="c")
    ref = TurnRef(agent="support", thread=f"t{number}", message_id="m")
    return Turn(ref=ref, calls=(call,))


async def test_a_key_that_stored_enough_reads_and_reports(stack: ApiStack) -> None:
    stack.api.limits = RateLimits(10**9, megabytes_per_day=1, clock_s=lambda: 0.0)
    click, claim = await stack.harness.refund()
    await stack.harness.reviews.decide(click, Approve(), ANA)
    key = stack.key()
    async with stack.gateway(key) as gateway:
        claimed = await gateway.claim(claim)
    assert isinstance(claimed, Claimed)
    async with stack.client(key) as client:
        replies = [
            await client.post(
                "/v1/submit", content=turn_of_size(number, 60_000).model_dump_json()
            )
            for number in range(12)
        ]
        queue = await client.get("/v1/approvals")
        finish = {
            "item_id": claim.item_id,
            "fence": claimed.fence,
            "result": {"ok": True},
        }
        done = await client.post("/v1/finish", json=finish)
    async with stack.gateway() as other:
        await other.submit(turn_of_size(99, 60_000))

    codes = [one.status_code for one in replies]
    assert codes == [200] * codes.count(200) + [429] * codes.count(429)
    assert 0 < codes.count(429) < 12
    assert (queue.status_code, done.status_code, done.json()) == (200, 200, True)
