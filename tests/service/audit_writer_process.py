"""Write the audit tree in a separate process, which is killed at one of its steps.

The steps are those that leave a trace: opens, writes, truncations and syncs of files,
and each command to the store.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from keyturn.gateway.store.audit import files as audit_files
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.store import Store
from tests.service.audit_harness import AuditHarness
from tests.store_secrets import SECRETS


def cut(owner: Any, name: str, left: list[int], *, is_async: bool = False) -> None:
    """Replace a function by one that ends the process at the chosen call."""
    plain = getattr(owner, name)

    def step() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    def run(*args: Any, **named: Any) -> Any:
        step()
        return plain(*args, **named)

    async def run_async(*args: Any, **named: Any) -> Any:
        step()
        return await plain(*args, **named)

    setattr(owner, name, run_async if is_async else run)


def _write_half(owner: Any, left: list[int]) -> None:
    """Let a process end in the middle of what it writes."""
    plain = owner.write_file

    def run(path: Path, data: bytes, mode: str) -> None:
        if left[0] == 0:
            with path.open(mode) as file:
                file.write(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        plain(path, data, mode)

    owner.write_file = run


async def _run(url: str, folder: Path, at: int) -> None:
    store = Store(url, secrets=SECRETS)
    house = AuditHarness(store, folder)
    left = [at]
    for name in ("fsync", "ftruncate", "pwrite"):
        cut(os, name, left)
    for name in ("append", "cut", "write_checkpoint"):
        cut(audit_files.TreeFiles, name, left)
    _write_half(audit_files, left)
    cut(Connection, "command", left, is_async=True)
    await house.writer.tick(is_last=True)
    print(at - left[0], flush=True)  # noqa: T201 - how many steps there are
    await store.close()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
