"""Measure the resources of an idle `keyturn run`.

One process with the bot, the gateway and two agents, connected to the sandbox, with
the embedded store in a separate process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import SECRETS
from bench.processes import resident_mb, worked_s
from bench.stats import Figure, Measured, NotMeasured, result
from keyturn.sandbox.server import Sandbox

_ROOT = Path(__file__).parent.parent
_START_S = 60.0
_SETTLED_S = 5.0

# The environment of the bench has every extra. redis-py loads OpenTelemetry wherever it
# is installed; most gateways run without the extra.
_RUN = (
    "import runpy, sys; sys.modules['opentelemetry'] = None; "
    "sys.argv = ['keyturn', 'run']; runpy.run_module('keyturn', run_name='__main__')"
)


async def measure(*, is_quick: bool = False) -> Figure:
    """Start the product, let it become idle, and measure its process."""
    rounds, seconds = (1, 2) if is_quick else (3, 20)
    used: list[tuple[float, ...]] = []
    held: list[tuple[float, ...]] = []
    async with Sandbox() as sandbox:
        with TemporaryDirectory(prefix="tk-bench-") as folder:
            process = await _started(sandbox, folder)
            try:
                for _ in range(rounds):
                    before_s = worked_s(process.pid)
                    await asyncio.sleep(seconds)
                    share = (worked_s(process.pid) - before_s) / seconds
                    used.append((100 * share,))
                    held.append((resident_mb(process.pid),))
            finally:
                process.terminate()
                await process.wait()
    processor = Measured("processor", "%", tuple(used))
    memory = Measured("memory", "MB", tuple(held))
    return Figure(
        "A system at rest",
        f"{rounds} times {seconds} s of `keyturn run` with two agents, without work, "
        "installed without the extra `otel`.",
        (processor, memory),
        (
            result("idle run, share of a processor", processor, at_most=1.3),
            result("idle run, resident memory", memory, at_most=160),
        ),
    )


async def _started(sandbox: Sandbox, folder: str) -> asyncio.subprocess.Process:
    env = {
        **{name: one for name, one in os.environ.items() if "KEYTURN" not in name},
        "KEYTURN_DATA_DIR": folder,
        "KEYTURN_SECRET": SECRETS[0].hex(),
        "KEYTURN_SLACK_API_URL": sandbox.api_url,
        "SLACK_BOT_TOKEN": sandbox.bot_token,
        "SLACK_APP_TOKEN": sandbox.app_token,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _RUN),
        cwd=_ROOT,
        env=env,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_START_S):
            await _ready(process)
            await asyncio.sleep(_SETTLED_S)
    except BaseException:
        if process.returncode is None:
            process.kill()
        raise
    return process


async def _ready(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if b"Ctrl+C" in line:
            return
    raise NotMeasured("'keyturn run' ended; see above for the reason.")
