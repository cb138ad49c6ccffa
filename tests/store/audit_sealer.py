"""Seal one segment in a process of its own, and be killed at one of its steps.

The steps are what leaves a trace: each `fsync`, the link, the removal of the rough
file, and each write to the store.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.kill_points import cut
from tests.store_secrets import SECRETS
from twokey.gateway.service import sealing
from twokey.gateway.store import audit_log
from twokey.gateway.store.store import Store


async def _seal(url: str, folder: Path, at: int) -> None:
    sealing.SEGMENT = 400
    left = [at]
    for name in ("open", "fsync", "link"):
        cut(os, name, left)
    cut(sealing, "SEAL", left, is_async=True)
    cut(audit_log.AuditLog, "trim_to", left, is_async=True)
    store = Store(url, secrets=SECRETS)
    store.audit_folder = folder
    await sealing.seal(store, store.keys_of_tenant("default"), folder)
    await store.close()


if __name__ == "__main__":
    asyncio.run(_seal(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
