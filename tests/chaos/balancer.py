"""Bring Slack's requests to one of several bots, each time to the next one."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Balancer:
    """A TCP load balancer; one that does not listen is passed over.

    Args:
        ports: of the bots, on this machine.
    """

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._pipes: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
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

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._ports.append(self._ports.pop(0))
        for port in self._ports:
            try:
                there, to = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            for source, sink in ((reader, to), (there, writer)):
                pipe = asyncio.create_task(_pipe(source, sink))
                self._pipes.add(pipe)
                pipe.add_done_callback(self._pipes.discard)
            return
        writer.close()


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except OSError:
        return
    finally:
        sink.close()
