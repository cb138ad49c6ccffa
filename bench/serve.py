"""Run the web server under test (our bot, plain Bolt, the least) in a subprocess.

Our bot runs in one process, or as `twokey bot --workers 2` does: two processes answer
on one port, and a third one publishes.

One line of JSON comes in on standard input, the request URL goes out in one line, and
the server stops when standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Literal

from bench.stats import NotMeasured
from twokey.gateway.store.store import Store
from twokey.sandbox.server import Sandbox

Name = Literal[
    "twokey",
    "two_workers",
    "gateway",
    "bolt",
    "one_script",
    "one_script_and_reply",
    "two_of_one_script_and_reply",
]

Run = Callable[["ServerSettings"], AbstractAsyncContextManager[str]]
"""Serves while its block runs; yields the request URL."""

_IN: dict[Name, str] = {
    "twokey": "bench.serve_bot",
    "two_workers": "bench.serve_bot",
    "gateway": "bench.serve_gateway",
    "bolt": "bench.serve_bolt",
    "one_script": "bench.serve_least",
    "one_script_and_reply": "bench.serve_least",
    "two_of_one_script_and_reply": "bench.serve_least",
}
"""Module of each server. Only the one that is run is imported: all of them take longer
to start than most rounds."""

_START_S = 120.0
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Which server to run, with its store and its Slack.

    Attributes:
        part: which process of several this is, and its files; "" for all. Of the
            least, the number of the socket that it accepts from.
        checkpoints: where a gateway keeps the threads of its agents.
        effects: the file in which its tool writes a line a call.
    """

    name: Name
    store_url: str
    api_url: str
    bot_token: str
    signing_secret: str
    part: str = ""
    checkpoints: str = ""
    effects: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs, in a process with all that this one started.

    Attributes:
        url: for requests.
        process: id of its process.
    """

    url: str
    process: int


def settings_of(name: Name, store: Store, sandbox: Sandbox) -> ServerSettings:
    """Return the settings of a server on this store and this Slack."""
    return ServerSettings(
        name=name,
        store_url=store.conn.url,
        api_url=sandbox.api_url,
        bot_token=sandbox.bot_token,
        signing_secret=sandbox.signing_secret,
    )


@asynccontextmanager
async def serving(
    settings: ServerSettings, *, fds: Sequence[int] = ()
) -> AsyncGenerator[Served]:
    """Run a server in a process of its own while the block runs.

    Args:
        settings: which one.
        fds: file descriptors that the process inherits.

    Yields:
        Where it is.

    Raises:
        NotMeasured: when it did not start.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.serve",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=fds,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(asdict(settings)).encode() + b"\n")
        async with asyncio.timeout(_START_S):
            url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise NotMeasured(f"The server {settings.name!r} did not start; see above.")
        yield Served(url, process.pid)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def main() -> None:
    """Serve what standard input names until it ends."""
    settings = ServerSettings(**json.loads(sys.stdin.readline()))
    runs: dict[Name, Run] = import_module(_IN[settings.name]).RUNS
    async with runs[settings.name](settings) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
