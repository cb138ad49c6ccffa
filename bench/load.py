"""HTTP load generator: send prepared requests and measure their latency.

It runs in a subprocess, so that it takes no CPU time from the measured server's
process. It uses minimal HTTP/1.1 over plain sockets: a client library or an event loop
would cost more than some servers, and the processors are shared. It reads one JSON
document on stdin and writes one on stdout.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from bench.stats import NotMeasured

ANSWER_S = 10.0
"""How long one answer may take; a slower one fails the measurement."""

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Request:
    """One POST; the body is ASCII, as every form is."""

    headers: dict[str, str]
    body: str


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a load.

    Attributes:
        taken_ms: the latency of each request, in the order of the answers.
        seconds: from the first request to the last answer.
        statuses: the number of answers for each HTTP status, with the status as text.
    """

    taken_ms: list[float]
    seconds: float
    statuses: dict[str, int]

    @property
    def per_second(self) -> float:
        """Return the throughput."""
        return len(self.taken_ms) / self.seconds


async def fire(
    url: str,
    requests: Sequence[Request],
    *,
    connections: int,
) -> Report:
    """Send every request once, from a separate process.

    Args:
        url: the target.
        requests: the requests.
        connections: the number of connections; each sends one request at a time.

    Raises:
        NotMeasured: when the server closed a connection or was too slow.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.load",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    plan = {
        "url": url,
        "connections": connections,
        "requests": [asdict(one) for one in requests],
    }
    output, _ = await process.communicate(json.dumps(plan).encode())
    if process.returncode:
        raise NotMeasured(f"The load on {url!r} was not answered; see above for why.")
    return Report(**json.loads(output))


def main() -> None:
    """Send the requests from stdin; print the report."""
    plan = json.load(sys.stdin)
    requests = [Request(**one) for one in plan["requests"]]
    gc.freeze()
    try:
        report = _fired(plan["url"], requests, plan["connections"])
    except TimeoutError:
        sys.exit(f"{plan['url']} did not answer within {ANSWER_S:.0f} s.")
    except (OSError, EOFError) as error:
        sys.exit(f"{plan['url']} hung up ({type(error).__name__}).")
    json.dump(asdict(report), sys.stdout)


def _fired(
    url: str,
    requests: list[Request],
    connections: int,
) -> Report:
    place = urlsplit(url)
    address = place.hostname or "", place.port or 80
    waiting = iter([_on_the_wire(place.path, address[0], one) for one in requests])
    clients = [
        _Client(socket.create_connection(address, ANSWER_S))
        for _ in range(min(connections, len(requests)))
    ]
    started = time.perf_counter()
    taken_ms, statuses = _answered(clients, waiting)
    seconds = time.perf_counter() - started
    for client in clients:
        client.socket.close()
    return Report(taken_ms, seconds, dict(statuses))


def _answered(
    clients: Sequence[_Client], waiting: Iterator[bytes]
) -> tuple[list[float], Counter[str]]:
    """Send the waiting requests, one at a time on each connection.

    Raises:
        TimeoutError: an answer did not come in time.
        EOFError: the server closed a connection.
    """
    taken_ms: list[float] = []
    statuses: Counter[str] = Counter()
    with selectors.DefaultSelector() as selector:
        for client, request in zip(clients, waiting, strict=False):
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.send(request)
        while selector.get_map():
            ready = selector.select(ANSWER_S)
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                served: _Client = key.data
                if (status := served.received()) is None:
                    continue
                taken_ms.append(served.taken_ms())
                statuses[status] += 1
                if (following := next(waiting, None)) is None:
                    selector.unregister(served.socket)
                else:
                    served.send(following)
    return taken_ms, statuses


class _Client:
    """One connection, with at most one unanswered request."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._began = 0.0
        self._answer = b""

    def send(self, request: bytes) -> None:
        """Send one request."""
        self._began, self._answer = time.perf_counter(), b""
        self.socket.sendall(request)

    def received(self) -> str | None:
        """Read available data; return the status once the answer is complete."""
        if not (chunk := self.socket.recv(_CHUNK)):
            raise EOFError
        self._answer += chunk
        head, _, body = self._answer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if b"\r\n\r\n" not in self._answer or len(body) < int(
            length[1] if length else 0
        ):
            return None
        return head[:12].rpartition(b" ")[2].decode("latin-1")

    def taken_ms(self) -> float:
        """Return the latency of the answer.

        Raises:
            TimeoutError: it took too long.
        """
        taken_s = time.perf_counter() - self._began
        if taken_s > ANSWER_S:
            raise TimeoutError
        return 1000 * taken_s


def _on_the_wire(path: str, host: str, request: Request) -> bytes:
    body = request.body.encode("ascii")
    headers = {"Host": host, "Content-Length": str(len(body)), **request.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


if __name__ == "__main__":
    main()
