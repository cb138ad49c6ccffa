"""Move one segment in a separate process, which is killed at one of its steps.

The steps are those that leave a trace: each `open` and `fsync`, the rename, and each
write to the store.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from keyturn.gateway.service import audit_writing
from keyturn.gateway.store import audit_log
from keyturn.gateway.store.audit_tree import TreeFiles
from keyturn.gateway.store.store import Store
from tests.kill_points import cut
from tests.store_secrets import SECRETS


async def _move(url: str, folder: Path, at: int) -> None:
    audit_writing.SEGMENT = 400
    store = Store(url, secrets=SECRETS)
    store.audit_folder = folder / "audit"
    keys = store.keys_of_tenant("default")
    files = TreeFiles(store.audit_folder, keys.tenant)
    mover = audit_writing.AuditMover(store, keys, files)
    left = [at]
    for name in ("open", "fsync"):
        cut(os, name, left)
    cut(Path, "replace", left)
    cut(audit_writing, "SEAL", left, is_async=True)
    cut(audit_log.AuditLog, "trim_to", left, is_async=True)
    await mover.move(files.place(files.size - 1))
    await store.close()


if __name__ == "__main__":
    asyncio.run(_move(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
