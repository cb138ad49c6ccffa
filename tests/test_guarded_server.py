"""A server that stops answers its current requests, and waits for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.guarded_server import GuardedServer, Limits, listening
from keyturn.gateway.service_settings import Address

HANGS_S = 60.0
"""How long anything may take here at most; it bounds a hang."""
BODY = b"x" * 1000
HEAD = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()


@dataclass
class Served:
    """A server, and a connection to it."""

    runner: web.ServerRunner
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    admitted: asyncio.Event = field(default_factory=asyncio.Event)

    async def stop(self) -> None:
        """Stop as a process does."""
        async with asyncio.timeout(HANGS_S):
            await self.runner.cleanup()

    async def answer(self) -> bytes:
        """Return everything that is answered, until the connection ends."""
        async with asyncio.timeout(HANGS_S):
            return await self.reader.read()


@asynccontextmanager
async def serving(body_bytes: int = len(BODY)) -> AsyncGenerator[Served]:
    """Serve what answers with the length of a body, read twice."""

    async def admit(_: web.BaseRequest) -> int:
        served.admitted.set()
        return len(BODY)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert await request.read() == await request.read()
        return web.Response(text=f"{len(await request.read())} bytes")

    # A body that is waited for ends the request long after the test gave up.
    limits = Limits(body_s=10 * HANGS_S, body_bytes=body_bytes)
    server = GuardedServer(handle, limits, name="api", admit=admit)
    runner = web.ServerRunner(server, shutdown_timeout=10 * HANGS_S)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    streams = await asyncio.open_connection(*runner.addresses[0][:2])
    served = Served(runner, *streams)
    try:
        yield served
    finally:
        served.writer.transport.abort()
        await served.stop()


async def test_a_body_that_does_not_come_holds_up_no_stop() -> None:
    async with serving() as served:
        served.writer.write(HEAD + BODY[:-1])
        await served.admitted.wait()

        await served.stop()

        with suppress(ConnectionError):
            assert not await served.answer()


@pytest.mark.parametrize(
    ("body_bytes", "answers"), [(len(BODY), b"1000 bytes"), (len(BODY) - 1, b" 413 ")]
)
async def test_a_body_with_its_header_is_bound(body_bytes: int, answers: bytes) -> None:
    async with serving(body_bytes) as served:
        last = HEAD.replace(b"Host", b"Connection: close\r\nHost")
        served.writer.write(last + BODY)

        answer = await served.answer()

        assert answers in answer


@pytest.mark.parametrize("body_bytes", [len(BODY), len(BODY) - 1])
async def test_a_client_that_expects_it_is_told_to_send_an_allowed_body(
    body_bytes: int,
) -> None:
    async with serving(body_bytes) as served, asyncio.timeout(HANGS_S):
        expecting = HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
        served.writer.write(expecting)

        first = await served.reader.readuntil(b"\r\n")
        if body_bytes < len(BODY):
            assert first.startswith(b"HTTP/1.1 413 ")
            return
        assert first == b"HTTP/1.1 100 Continue\r\n"
        served.writer.write(BODY)
        assert b"200 OK" in await served.reader.readuntil(b"1000 bytes")


async def test_a_connection_without_a_request_is_closed_at_once() -> None:
    async with serving() as served:
        await served.stop()

        assert not await served.answer()


@pytest.mark.parametrize("host", ["..", "a" * 70])
async def test_a_host_that_is_no_name_is_a_sentence(host: str) -> None:
    async with serving() as served:
        server = served.runner.server
        assert isinstance(server, GuardedServer)

        with pytest.raises(SettingsError, match="it is no host name"):
            async with listening(server, Address(host, 0), "'api.listen'"):
                pass
