"""Run ``twokey bot --workers`` as people do, between the sandbox and a real store."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.bot.bot_stack import POLICY, Stack
from tests.ports import free_port
from tests.store_secrets import ENV
from twokey.gateway.config import SlackMode

_STARTED = re.compile(r"worker\.started name=(\S+) pid=(\d+)")
_PATIENCE_S = 60.0


@dataclass
class Workers:
    """A running supervisor, and what it has logged.

    Attributes:
        pids: of the newest process of each name.
    """

    process: asyncio.subprocess.Process
    port: int
    log: str = ""
    reading: asyncio.Task[None] | None = None
    pids: dict[str, int] = field(default_factory=dict[str, int])
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Read what is said until it ends."""
        while line := (await stream.readline()).decode():
            self.log += line
            if started := _STARTED.search(line):
                self.pids[started[1]] = int(started[2])
            self._news.set()

    async def until(self, happened: Callable[[], object]) -> None:
        """Wait until what was logged makes a condition true."""
        async with asyncio.timeout(_PATIENCE_S):
            while not happened():
                self._news.clear()
                await self._news.wait()

    async def said(self, words: str, times: int = 1) -> None:
        """Wait until something was logged so often."""
        await self.until(lambda: self.log.count(words) >= times)

    async def ended(self) -> int:
        """Wait until it has ended and everything was read; return its exit code."""
        assert self.reading is not None
        async with asyncio.timeout(_PATIENCE_S):
            await self.reading
            return await self.process.wait()

    async def kill(self, name: str) -> None:
        """Kill -9 one process, and wait until another one took its place."""
        before = self.pids[name]
        os.kill(before, signal.SIGKILL)
        await self.until(lambda: self.pids[name] != before)

    async def ask(self, path: str) -> tuple[int, str]:
        """Ask whichever process takes a new connection."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}{path}") as answer,
        ):
            return answer.status, await answer.text()


@asynccontextmanager
async def started(
    stack: Stack, store_url: str, folder: Path, count: int = 2, **changes: str
) -> AsyncGenerator[Workers]:
    """Start a supervisor; kill it at the end, with what it left running."""
    port, config = free_port(), stack.config
    (folder / "policy.yml").write_text(POLICY)
    (folder / "twokey.yml").write_text("policy: policy.yml\n")
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "TWOKEY_REDIS_URL": store_url,
        **ENV,
        "TWOKEY_SLACK_MODE": stack.mode,
        "TWOKEY_SLACK_PORT": str(port),
        "TWOKEY_SLACK_API_URL": config.api_url,
        "SLACK_BOT_TOKEN": config.bot_token,
        "SLACK_APP_TOKEN": config.app_token,
        "SLACK_SIGNING_SECRET": config.signing_secret,
        **changes,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "twokey", "bot", "--workers", str(count)),
        cwd=folder,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    workers = Workers(process, port)
    reading = workers.reading = asyncio.create_task(workers.read(process.stdout))
    try:
        if stack.mode is SlackMode.HTTP:
            stack.sandbox.deliver_http(f"{workers.url}/slack/events")
        yield workers
    finally:
        for pid in (process.pid, *workers.pids.values()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.wait()
        await reading


def is_alive(pid: int) -> bool:
    """Say whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
