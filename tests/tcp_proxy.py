"""Proxies for servers: they pass, delay, damage or share connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias
from urllib.parse import urlsplit

Pieces: TypeAlias = Callable[[bytes], list[bytes]]
"""Returns the pieces in which bytes are delivered; b"" hangs up."""

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """Listen on a free port of this machine, and pass each connection on.

    Several servers get one connection after the other; one that does not listen is
    skipped. While it is closed, bytes wait silently, as in a partition.

    Args:
        to: addresses of the servers: ``redis://``, ``unix://``, ``http://``.

    Attributes:
        url: the proxy's address, of the same kind as that of the first server.
    """

    def __init__(self, *to: str) -> None:
        self._to = list(to)
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._pipes: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        is_http = urlsplit(self._to[0]).scheme == "http"
        place = f"127.0.0.1:{port}"
        self.url = f"http://{place}" if is_http else f"redis://{place}/0"
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

    def lead_to(self, *to: str) -> None:
        """Pass new connections on to other servers; open ones stay where they are."""
        self._to[:] = to

    def close(self) -> None:
        """Block everything from now on."""
        self._is_open.clear()

    def open(self) -> None:
        """Pass everything that waited, and everything new."""
        self._is_open.set()

    def reset(self) -> None:
        """Close all current connections; new ones are passed."""
        for pipe in self._pipes:
            pipe.cancel()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._is_open.wait()
        self._to.append(self._to.pop(0))
        for url in self._to:
            try:
                there, to = await connect(url)
            except OSError:
                continue
            for source, sink in ((reader, to), (there, writer)):
                pipe = asyncio.create_task(pump(source, sink, gate=self._is_open))
                self._pipes.add(pipe)
                pipe.add_done_callback(self._pipes.discard)
                # Also of one that is cancelled before it has begun.
                pipe.add_done_callback(partial(_hang_up, sink))
            return
        writer.close()


def _hang_up(sink: asyncio.StreamWriter, _: asyncio.Task[None]) -> None:
    sink.close()


async def connect(url: str) -> Streams:
    """Open a connection to a Unix socket, or to a host and port."""
    there = urlsplit(url)
    if there.scheme == "unix":
        return await asyncio.open_unix_connection(there.path)
    return await asyncio.open_connection(there.hostname, there.port)


async def pump(
    source: asyncio.StreamReader,
    sink: asyncio.StreamWriter,
    *,
    pieces: Pieces | None = None,
    gate: asyncio.Event | None = None,
) -> None:
    """Pass data on until one side closes; then close the other."""
    try:
        while data := await source.read(65536):
            if gate is not None:
                await gate.wait()
            for piece in pieces(data) if pieces else [data]:
                if not piece:
                    return
                sink.write(piece)
                await sink.drain()
                if pieces:
                    # Else the kernel would put the pieces together again.
                    await asyncio.sleep(0)
    except OSError:
        return
    finally:
        sink.close()
