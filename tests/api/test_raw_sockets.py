"""Bytes on a socket that no HTTP client sends: answered or cut off, never a failure."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyturn.gateway.guarded_server import Limits
from keyturn.gateway.protocol.http_api import MAX_BODY_BYTES, OPERATIONS
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.levels import examples, size
from tests.service.harness import ServiceHarness

ANSWERED_S = 60.0
"""How long an answer may take here at most; it bounds a hang."""
BODY = b'{"agent":"support"}'
SIZE = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
AUTH = b"Authorization: Bearer KEY\r\n"
LEASE = b"Keyturn-Lease: 1 %b\r\n"
MIB = 1024 * 1024
EVERY: Any = list(HealthCheck)


def post(*lines: bytes, body: bytes = BODY) -> bytes:
    """Return a complete request except for the given lines; KEY is filled in."""
    head = (
        b"POST /v1/note HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\n",
        *lines,
    )
    return b"".join((*head, b"\r\n", body))


def get(path: bytes, *lines: bytes) -> bytes:
    return b"".join((b"GET ", path, b" HTTP/1.1\r\nHost: x\r\n", *lines, b"\r\n"))


ODD: dict[str, tuple[bytes, set[int]]] = {
    "whole": (post(SIZE), {200}),
    "pipeline": (post(SIZE) * 200, {200}),
    "pipeline_with_garbage": (post(SIZE) * 3 + b"\xff\xfe\r\n\r\n", {400}),
    "pipeline_behind_upgrade": (
        get(b"/healthz", b"Connection: upgrade\r\nUpgrade: h2c\r\n")
        + get(b"/healthz") * 100,
        {200, 400},
    ),
    "chunk_size_is_no_number": (post(CHUNKED, body=b"zz\r\nabc\r\n0\r\n\r\n"), {400}),
    "chunk_never_ends": (post(CHUNKED, body=b"5\r\nab"), {400, 408}),
    "chunk_extension": (
        post(CHUNKED, body=b"13;" + b"x" * 70_000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
        {200, 400},
    ),
    "chunked_with_a_length": (post(CHUNKED, SIZE, body=b"0\r\n\r\n"), {400}),
    "two_lengths": (post(SIZE, b"Content-Length: 18\r\n"), {400}),
    "length_too_long": (post(b"Content-Length: 100\r\n"), {408}),
    "length_of_gigabytes": (post(b"Content-Length: 99999999999\r\n"), {408, 413}),
    "expects": (post(SIZE, b"Expect: 100-continue\r\n"), {100, 200, 417}),
    "long_header": (post(SIZE, b"X: " + b"y" * 200_000 + b"\r\n"), {400}),
    "header_never_ends": (b"GET / HTTP/1.1\r\nHost: x\r\nX: y\r\n", set()),
    "long_path": (get(b"/" + b"a" * 200_000), {400}),
    "no_host": (b"GET /healthz HTTP/1.1\r\n\r\n", {200, 400}),
    "odd_url": (get(b"http://[::1/healthz"), {400, 404}),
    "star": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", {404, 405}),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400}),
    "query_not_utf8": (get(b"/v1/events?after=%ff%fe"), {400, 401}),
    "lease_token_not_utf8": (post(SIZE, LEASE % b"\xff support t1"), {400}),
    "cursor_not_utf8": (get(b"/v1/approvals?cursor=%ff", AUTH), {400}),
}
"""What is sent, and the statuses that the last answer may have; none: it is cut off."""


WAITED_FOR = {
    *("chunk_never_ends", "length_too_long", "length_of_gigabytes"),
    *("header_never_ends", "nothing"),
}
"""What the server waits for before it gives up."""


@pytest.fixture
async def stack(
    store: Store, request: pytest.FixtureRequest
) -> AsyncGenerator[ApiStack]:
    """Serve, with a short patience where it is what ends a request."""
    called = getattr(request.node, "callspec", None)
    is_short = called is not None and called.params.get("name") in WAITED_FOR
    limits = Limits(body_bytes=MAX_BODY_BYTES)
    if is_short:
        limits = replace(limits, header_s=0.5, body_s=0.5)
    async with serving(ServiceHarness(store), limits=limits) as found:
        yield found


@pytest.fixture(autouse=True)
def no_failures(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """Check that no request is logged as an internal failure."""
    yield
    for when in ("setup", "call"):
        worst = [one for one in caplog.get_records(when) if one.levelno > logging.INFO]
        # A busy machine can block a loop for seconds.
        fine = ("refused why=", "loop.blocked")
        said = [one.getMessage() for one in worst]
        assert not [one for one in said if not any(word in one for word in fine)]


async def opened(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


async def exchanged(url: str, sent: bytes, *, ends: str) -> list[int]:
    """Send bytes, read until the server hangs up, and return the statuses."""
    reader, writer = await opened(url)
    try:
        async with asyncio.timeout(ANSWERED_S):
            writer.write(sent)
            if ends == "asks_to_close":
                # So that a kept-alive connection ends, too.
                await asyncio.sleep(0)
                writer.write(get(b"/healthz", b"Connection: close\r\n"))
            if ends == "half_closed":
                writer.write_eof()
            if ends == "reset":
                await writer.drain()
                writer.transport.abort()
                return []
            came = await reader.read(-1)
    except ConnectionError:
        return []
    finally:
        writer.close()
    parts = came.split(b"HTTP/1.")[1:]
    return [int(part[2:5]) for part in parts]


async def is_well(stack: ApiStack) -> bool:
    async with httpx.AsyncClient(base_url=stack.url, timeout=ANSWERED_S) as client:
        return (await client.get("/healthz")).is_success


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_request_is_answered(stack: ApiStack, name: str) -> None:
    sent, allowed = ODD[name]
    whole = sent.replace(b"KEY", stack.key(["*"]).encode())

    found = await exchanged(stack.url, whole, ends="asks_to_close")

    assert all(status < 500 for status in found)
    # The last response may be that of the following request. A server that closes the
    # connection before it has read everything resets it, and its response is lost.
    assert not found or set(found[-2:]) & (allowed or {200, 400, 408})
    assert found or allowed != {200}
    assert await is_well(stack)


DEEP = MAX_BODY_BYTES // 16
JSON: dict[str, bytes] = {
    "twice": b'{"agent":"support","agent":"billing"}',
    "not_a_number": b'{"agent":NaN}',
    "too_big_a_power": b'{"agent":1e999}',
    "beyond_64_bits": b'{"agent":9223372036854775808}',
    "deep_lists_closed": b"[" * DEEP + b"]" * DEEP,
    "utf_16": '{"agent":"support"}'.encode("utf-16"),
    "byte_order_mark": b"\xef\xbb\xbf" + BODY,
    "overlong_utf_8": b'{"agent":"\xc0\xaf"}',
    "half_a_pair": b'{"agent":"\\ud800"}',
    "nothing": b"",
    "two_documents": BODY * 2,
    "many_members": b"{"
    + b",".join(b'"k%d":1' % n for n in range(size(deep=200_000, short=20_000)))
    + b"}",
    "too_long": b'{"agent":"' + b"a" * MAX_BODY_BYTES + b'"}',
}


@pytest.mark.parametrize("name", JSON)
async def test_ambiguous_json_is_refused(stack: ApiStack, name: str) -> None:
    async with stack.client(stack.key(["*"])) as client:
        replies = [
            await client.post(one.path, content=JSON[name]) for one in OPERATIONS
        ]

    assert {one.status_code for one in replies} == {413 if name == "too_long" else 400}
    assert all(one.json()["status"] == one.status_code for one in replies)


async def test_who_reads_no_answers_is_read_no_further(stack: ApiStack) -> None:
    """Requests behind one another wait in the client, and not in our memory."""
    host, _, port = stack.url.removeprefix("http://").partition(":")
    with closing(socket.create_connection((host, int(port)))) as client:
        client.setblocking(False)  # noqa: FBT003 - takes it by position only
        sent = await _filled(stack, client, get(b"/v1/openapi.json") * 1000)

    # What the kernel keeps for both sides, and 32 requests.
    assert sent < 16 * MIB
    assert await is_well(stack)


async def test_a_body_without_an_end_is_read_to_its_limit(stack: ApiStack) -> None:
    start = post(CHUNKED, body=b"").replace(b"KEY", stack.key().encode())
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    reader, writer = await opened(stack.url)
    async with asyncio.timeout(ANSWERED_S):
        writer.write(start)
        try:
            for _ in range(20 * MAX_BODY_BYTES // len(chunk)):
                writer.write(chunk)
                await writer.drain()
            came = await reader.read(-1)
        except ConnectionError:
            came = b""
    writer.close()

    assert not came or b" 413 " in came
    assert await is_well(stack)


async def _filled(stack: ApiStack, client: socket.socket, piece: bytes) -> int:
    """Send until nothing more is taken while others are answered; count the bytes."""
    sent, stuck = 0, 0
    while stuck < 20 and sent < 64 * MIB:
        try:
            sent += client.send(piece)
            stuck = 0
        except BlockingIOError:
            assert await is_well(stack)
            stuck += 1
    return sent


METHODS = [b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"x", b"G\0T"]
PATHS = [b"/v1/note", b"/v1/submit", b"/v1/events", b"/healthz", b"/", b"/%00", b"*"]


@settings(max_examples=examples(300), deadline=None, suppress_health_check=EVERY)
@given(
    method=st.sampled_from(METHODS),
    path=st.sampled_from(PATHS) | st.binary(max_size=40),
    headers=st.lists(
        st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=4
    ),
    length=st.sampled_from([b"", b"0", b"-1", b"5", b"99999999999", b"1, 2", b"0x10"]),
    body=st.binary(max_size=400),
    cut_times=st.tuples(st.integers(0, 800), st.integers(1, 3)),
    ends=st.sampled_from(["asks_to_close", "half_closed", "reset"]),
)
def test_any_bytes_are_answered_or_cut_off(
    apart: ApiStack,
    method: bytes,
    path: bytes,
    headers: list[tuple[bytes, bytes]],
    length: bytes,
    body: bytes,
    cut_times: tuple[int, int],
    ends: str,
) -> None:
    cut, times = cut_times
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: x"]
    lines += [name + b": " + value for name, value in headers]
    if length:
        lines.append(b"Content-Length: " + length)
    lines.append(b"Authorization: Bearer " + apart.key().encode())
    sent = b"\r\n".join([*lines, b"", body]) * times

    found = asyncio.run(exchanged(apart.url, sent[: cut or None], ends=ends))

    assert all(status < 500 for status in found), sent
