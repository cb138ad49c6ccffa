"""A `keyturn gateway` in a separate process, which serves the HTTP API."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.service.harness import POLICY
from tests.store_secrets import SECRETS

SRC = Path(__file__).parents[2] / "src"
SECRET = SECRETS[0].hex()
READY_S = 60.0


@dataclass
class GatewayProcess:
    """A running gateway: its process, its URL and its output."""

    process: asyncio.subprocess.Process
    url: str
    said: list[str]

    async def stop(self, *, within_s: float = 30.0) -> int:
        """Ask it to stop; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), within_s)


def environment(store_url: str) -> dict[str, str]:
    """Return the environment of a gateway and of its commands."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KEYTURN_", "SLACK_"))
    }
    return {
        **kept,
        "PYTHONPATH": str(SRC),
        "KEYTURN_REDIS_URL": store_url,
        "KEYTURN_SECRET": SECRET,
        "NO_COLOR": "1",
    }


@asynccontextmanager
async def gateway_process(
    folder: Path,
    store_url: str,
    *,
    beside: Mapping[str, object] | None = None,
    **api: object,
) -> AsyncGenerator[GatewayProcess]:
    """Run a gateway until the block ends; ``beside`` are its other settings."""
    document = {
        "policy": yaml.safe_load(POLICY),
        "api": {"listen": "127.0.0.1:0", **api},
        "log": {"level": "info"},
        **(beside or {}),
    }
    config = folder / "keyturn.yml"
    config.write_text(yaml.safe_dump(document))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "keyturn", "--config", str(config), "gateway"),
        env=environment(store_url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(READY_S):
            while not (said and "reach it at " in said[-1]):
                line = (await process.stdout.readline()).decode()
                assert line, "".join(said)
                said.append(line)
        url = said[-1].partition("reach it at ")[2].strip().rstrip(".")
        reading = asyncio.create_task(_read(process.stdout, said))
        yield GatewayProcess(process, url, said)
        await reading if process.returncode is not None else reading.cancel()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _read(stream: asyncio.StreamReader, said: list[str]) -> None:
    while line := await stream.readline():
        said.append(line.decode())
