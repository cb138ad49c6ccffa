"""Start workers as processes, and see how they end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.forked import Forked
from tests.resume import sample_tools

LEASE_MS = 1000
_MODULE = "tests.resume.worker_process"


@asynccontextmanager
async def worker(
    url: str, checkpoints: Path, *, die_at: str = ""
) -> AsyncGenerator[Forked]:
    """Run a worker process; it is ready when the block begins."""
    process = await asyncio.to_thread(
        Forked,
        *(_MODULE, url, str(checkpoints), str(LEASE_MS)),
        env={**os.environ, sample_tools.DIE: die_at},
    )
    try:
        assert (await asyncio.to_thread(process.stdout.readline)).strip() == "ready"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)


async def killed(process: Forked) -> None:
    """Wait until a process died by SIGKILL."""
    assert await asyncio.to_thread(process.wait, 20) == -signal.SIGKILL
