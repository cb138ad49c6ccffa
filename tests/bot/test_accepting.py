"""Processes that share a socket share its connections, and none of them is lost."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web

from tests.conftest import eventually
from twokey.bot import accepting
from twokey.bot.accepting import Acceptor
from twokey.bot.listening import accept_by_turns, shared_listener

Accept = Callable[[], tuple[socket.socket, object]]


class _Listener:
    """A listener whose ``accept`` is replaced; all else is that of a real one."""

    def __init__(self, listener: socket.socket, accept: Accept) -> None:
        self.accept = accept
        self.fileno = listener.fileno
        self.settimeout = listener.settimeout


@asynccontextmanager
async def serving(listener: socket.socket) -> AsyncGenerator[list[str]]:
    """Serve as one process of several; yields the paths that it was asked for."""
    asked = list[str]()

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.path)
        return web.Response()

    async with AsyncExitStack() as opening:
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        opening.push_async_callback(runner.cleanup)
        accept_by_turns(opening, runner, listener)
        yield asked


async def get(listener: socket.socket, path: str) -> tuple[str, asyncio.StreamWriter]:
    """Ask over a connection of its own, which stays open; return the status line."""
    reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
    writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    return (await reader.readline()).decode().strip(), writer


@pytest.fixture
def listener() -> socket.socket:
    return shared_listener("127.0.0.1", 0)


async def test_each_takes_one_connection_and_leaves_the_next_to_the_others(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_S", 3600.0)
    with listener, listener.dup() as other:
        async with serving(listener) as one, serving(other) as two:
            answers = [await get(listener, f"/{number}") for number in range(2)]
            for _, writer in answers:
                writer.close()

    assert [status for status, _ in answers] == ["HTTP/1.1 200 OK"] * 2
    assert (len(one), len(two)) == (1, 1)


async def test_one_alone_takes_all_of_them(listener: socket.socket) -> None:
    with listener:
        async with serving(listener) as asked:
            answers = await asyncio.gather(*(get(listener, f"/{n}") for n in range(30)))
            for _, writer in answers:
                writer.close()

    assert {status for status, _ in answers} == {"HTTP/1.1 200 OK"}
    assert sorted(asked) == sorted(f"/{number}" for number in range(30))


async def test_one_that_stops_leaves_the_others_what_waits(
    listener: socket.socket,
) -> None:
    with listener, listener.dup() as other:
        async with serving(listener) as one:
            pass
        waiting = asyncio.create_task(get(listener, "/late"))
        async with serving(other) as two:
            status, writer = await waiting
            writer.close()

    assert (status, one, two) == ("HTTP/1.1 200 OK", [], ["/late"])


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.EMFILE, "too many open files"),
        BlockingIOError(),
        ConnectionAbortedError(),
    ],
)
async def test_it_goes_on_after_a_connection_that_it_could_not_take(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, failure: OSError
) -> None:
    monkeypatch.setattr(accepting, "_FULL_S", 0.001)
    failures = [failure]

    def accept() -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return listener.accept()

    seen = list[asyncio.BaseTransport]()

    class _Noting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            seen.append(transport)

    async def is_seen() -> bool:
        return bool(seen)

    with listener:
        acceptor = Acceptor(_Noting, _Listener(listener, accept))  # type: ignore[arg-type]
        acceptor.start()
        with socket.create_connection(listener.getsockname()):
            await eventually(is_seen)
            await acceptor.stop()
            seen[0].abort()  # type: ignore[attr-defined]

    assert failures == []
