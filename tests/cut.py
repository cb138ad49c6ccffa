"""Cut a network: a TCP proxy that can go silent, as a partition is."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Cut:
    """Stand before a server; while closed, bytes wait and nobody is told.

    Args:
        to: address of the server: ``redis://``, ``unix://``, ``http://``.
    """

    def __init__(self, to: str) -> None:
        self._to = urlsplit(to)
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._pipes: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        scheme = "http" if self._to.scheme == "http" else "redis"
        tail = "" if self._to.scheme == "http" else "/0"
        self.url = f"{scheme}://{host}:{port}{tail}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close everything."""
        self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def close(self) -> None:
        """Let nothing through from now on."""
        self._is_open.clear()

    def open(self) -> None:
        """Let everything through that waited, and what comes."""
        self._is_open.set()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._is_open.wait()
        try:
            there, to = await self._connect()
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, to), (there, writer)):
            pipe = asyncio.create_task(self._pipe(source, sink))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._to.scheme == "unix":
            return await asyncio.open_unix_connection(self._to.path)
        return await asyncio.open_connection(self._to.hostname, self._to.port)

    async def _pipe(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await source.read(65536):
                await self._is_open.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            return
        finally:
            sink.close()
