"""HTTP load generator: send prepared requests and measure their latency.

It runs in a subprocess, so that it takes no CPU time from the measured server, and
speaks minimal HTTP/1.1 over a socket: a client library would cost more than some
servers do. It reads one JSON document on stdin and writes one on stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from bench.processors import used_s
from bench.stats import NotMeasured

ANSWER_S = 10.0
"""How long one answer may take; a slower one fails the measurement."""


@dataclass(frozen=True, slots=True)
class Request:
    """One POST; the body is ASCII, as every form is."""

    headers: dict[str, str]
    body: str


@dataclass(frozen=True, slots=True)
class Report:
    """What came back.

    Attributes:
        taken_ms: of each request, in the order of the answers.
        seconds: from the first request to the last answer.
        statuses: how often each HTTP status was answered, by its number as text.
        processor_s: what all processors of the machine worked meanwhile, for all.
    """

    taken_ms: list[float]
    seconds: float
    statuses: dict[str, int]
    processor_s: float = 0.0

    @property
    def per_second(self) -> float:
        """Return the throughput."""
        return len(self.taken_ms) / self.seconds


async def fire(url: str, requests: Sequence[Request], *, connections: int) -> Report:
    """Send every request once, from a process of its own.

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
    """Send the requests that stdin describes; print the report."""
    plan = json.load(sys.stdin)
    requests = [Request(**one) for one in plan["requests"]]
    try:
        report = asyncio.run(_fired(plan["url"], requests, plan["connections"]))
    except TimeoutError:
        sys.exit(f"{plan['url']} did not answer within {ANSWER_S:.0f} s.")
    except (OSError, EOFError) as error:
        sys.exit(f"{plan['url']} hung up ({type(error).__name__}).")
    json.dump(asdict(report), sys.stdout)


async def _fired(url: str, requests: list[Request], connections: int) -> Report:
    place = urlsplit(url)
    host, port = place.hostname or "", place.port or 80
    waiting = iter([_on_the_wire(place.path, host, one) for one in requests])
    opened = [await asyncio.open_connection(host, port) for _ in range(connections)]
    taken_ms: list[float] = []
    statuses: Counter[str] = Counter()
    started, worked = time.perf_counter(), used_s()
    await asyncio.gather(
        *(
            _client(reader, writer, waiting, taken_ms, statuses)
            for reader, writer in opened
        )
    )
    seconds, worked = time.perf_counter() - started, used_s() - worked
    for _, writer in opened:
        writer.close()
    return Report(taken_ms, seconds, dict(statuses), worked)


async def _client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    waiting: Iterator[bytes],
    taken_ms: list[float],
    statuses: Counter[str],
) -> None:
    for request in waiting:
        began = time.perf_counter()
        writer.write(request)
        async with asyncio.timeout(ANSWER_S):
            status = await _status(reader)
        taken_ms.append((time.perf_counter() - began) * 1000)
        statuses[status] += 1


async def _status(reader: asyncio.StreamReader) -> str:
    """Read one whole answer; return its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    for line in lines:
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            await reader.readexactly(int(value))
    return first.split(" ")[1]


def _on_the_wire(path: str, host: str, request: Request) -> bytes:
    body = request.body.encode("ascii")
    headers = {"Host": host, "Content-Length": str(len(body)), **request.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


if __name__ == "__main__":
    main()
