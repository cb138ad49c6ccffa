"""The answer that is written as one text says what any empty answer says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from twokey.bot.acknowledgement import Acknowledgement
from twokey.gateway.guarded_server import GuardedServer, Limits

HANGS_S = 60.0
"""How long anything may take here at most; it bounds a hang."""
NOW_S = 1_800_000_000.5
WRITTEN = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
    b"Date: Fri, 15 Jan 2027 08:00:00 GMT\r\n\r\n"
)
REQUEST = "POST / HTTP/{}\r\nHost: x\r\nContent-Length: 2\r\n{}\r\n{{}}"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def acknowledge(_: web.BaseRequest) -> web.StreamResponse:
    return Acknowledgement(NOW_S)


async def as_aiohttp_does(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response()


@asynccontextmanager
async def connected(handler: Handler = acknowledge) -> AsyncGenerator[Streams]:
    """Connect to a server that answers so."""
    runner = web.ServerRunner(GuardedServer(handler, Limits(), name="ingress"))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
    try:
        async with asyncio.timeout(HANGS_S):
            yield reader, writer
    finally:
        writer.transport.abort()
        await runner.cleanup()


def request(version: str = "1.1", *headers: str) -> bytes:
    return REQUEST.format(version, "".join(f"{one}\r\n" for one in headers)).encode()


def is_gone(of: web.BaseRequest) -> bool:
    return of.transport is None


def names(head: bytes) -> set[str]:
    """Return what a header says, but for when and by whom."""
    lines = head.decode().split("\r\n")
    return {one for one in lines if one and not one.startswith(("Date: ", "Server: "))}


async def test_it_is_empty_and_dated_and_the_connection_stays_open() -> None:
    async with connected() as (reader, writer):
        for _ in range(2):
            writer.write(request())
            assert await reader.readexactly(len(WRITTEN)) == WRITTEN


async def test_each_of_two_requests_that_come_together_gets_one() -> None:
    async with connected() as (reader, writer):
        writer.write(request() * 2)

        assert await reader.readexactly(2 * len(WRITTEN)) == 2 * WRITTEN


@pytest.mark.parametrize(
    "asked",
    [
        request("1.1", "Connection: close"),
        request("1.0"),
        request("1.1", "Connection: Upgrade", "Upgrade: other"),
    ],
    ids=["close", "1.0", "upgrade"],
)
async def test_a_connection_that_is_not_to_stay_is_closed(asked: bytes) -> None:
    answers = list[bytes]()
    for handler in (acknowledge, as_aiohttp_does):
        async with connected(handler) as (reader, writer):
            writer.write(asked)
            answers.append(await reader.read())

    assert names(answers[0]) == names(answers[1])


async def test_a_connection_of_the_older_version_stays_as_it_asks() -> None:
    asked = request("1.0", "Connection: keep-alive")
    async with connected() as (reader, writer):
        for _ in range(2):
            writer.write(asked)
            head = await reader.readuntil(b"\r\n\r\n")
            assert "Connection: keep-alive" in names(head)


async def test_it_says_what_aiohttp_says() -> None:
    async with connected(as_aiohttp_does) as (reader, writer):
        writer.write(request())

        assert names(await reader.readuntil(b"\r\n\r\n")) == names(WRITTEN)


async def test_who_went_away_is_answered_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answered = asyncio.Event()

    async def leave(of: web.BaseRequest) -> web.StreamResponse:
        assert of.transport is not None
        of.transport.abort()
        while not is_gone(of):  # noqa: ASYNC110 - aiohttp sets no event
            await asyncio.sleep(0)
        answered.set()
        return Acknowledgement(NOW_S)

    with caplog.at_level(logging.WARNING):
        async with connected(leave) as (reader, writer):
            writer.write(request())
            await answered.wait()

            assert await reader.read() == b""

    assert caplog.messages == []
