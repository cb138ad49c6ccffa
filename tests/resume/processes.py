"""Start workers as processes, and see how they end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.resume import sample_tools

LEASE_MS = 1000
_MODULE = "tests.resume.worker_process"


@asynccontextmanager
async def worker(
    url: str, checkpoints: Path, *, die_at: str = ""
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a worker process; it is ready when the block begins."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", _MODULE, url, str(checkpoints), str(LEASE_MS),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, sample_tools.DIE: die_at},
    )  # fmt: skip
    try:
        assert process.stdout
        assert (await process.stdout.readline()).strip() == b"ready"
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def killed(process: asyncio.subprocess.Process) -> None:
    """Wait until a process died by SIGKILL."""
    async with asyncio.timeout(20):
        assert await process.wait() == -signal.SIGKILL
