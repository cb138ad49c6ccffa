"""Seal one segment in a process of its own, and be killed at one of its steps.

The steps are what leaves a trace: each `fsync`, the link, the removal of the rough
file, and each write to the store.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from twokey.gateway.service import sealing
from twokey.gateway.store import audit_log
from twokey.gateway.store.store import Store

# Of its own: a program in a process of its own finds no modules of the tests.
SECRETS = (b"the secret of all of these tests",)


def _cut(owner: Any, name: str, left: list[int], *, is_async: bool = False) -> None:
    """Let a function end the process instead, when its turn comes."""
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


async def _seal(url: str, folder: Path, at: int) -> None:
    sealing.SEGMENT = 400
    left = [at]
    for name in ("open", "fsync", "link"):
        _cut(os, name, left)
    _cut(sealing, "SEAL", left, is_async=True)
    _cut(audit_log.AuditLog, "trim_to", left, is_async=True)
    store = Store(url, secrets=SECRETS)
    store.audit_folder = folder
    await sealing.seal(store, store.keys_of_tenant("default"), folder)
    await store.close()


if __name__ == "__main__":
    asyncio.run(_seal(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
