"""A server whose every byte the test chooses, and a proxy that damages traffic."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import hiredis

from tests.tcp_proxy import Pieces, connect, pump

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Scripted:
    """Serve a Unix socket: the first connection by the first handler, and so on.

    The last handler serves all further ones. A handler that returns hangs up.
    """

    def __init__(self, folder: Path, *handlers: Handler) -> None:
        self._path = folder / "s"
        self._handlers = handlers
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = f"unix://{self._path}"
        self.opened = 0

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._accept, str(self._path))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        handler = self._handlers[min(self.opened, len(self._handlers) - 1)]
        self.opened += 1
        task = asyncio.create_task(self._serve(handler, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self,
        handler: Handler,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            await handler(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()


def answering(reply: Callable[[list[bytes]], bytes]) -> Handler:
    """Give a handler that answers each command by a function."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(65536):
            parser.feed(data)
            while (words := parser.gets()) is not False:
                writer.write(reply(words))
                await writer.drain()

    return serve


async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept everything and never answer."""
    while await reader.read(65536):
        pass


def through(url: str, way_back: Pieces) -> Handler:
    """Return a handler that passes everything on to a real server.

    Args:
        url: of its Unix socket or of its host and port.
        way_back: the pieces of the server's replies to deliver; b"" hangs up.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source, sink = await connect(url)
        sending = asyncio.create_task(pump(reader, sink))
        try:
            await pump(source, writer, pieces=way_back)
        finally:
            sending.cancel()
            sink.close()

    return serve


async def serve_tls(handler: Handler, certificate: Path) -> asyncio.Server:
    """Serve a free port of this machine by TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
