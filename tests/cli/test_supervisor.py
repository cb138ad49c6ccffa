"""Child processes live until they are told to stop, whatever comes before."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.conftest import eventually
from twokey.cli.supervisor import Child, Supervisor

ONCE_ASKED = (
    "import os, sys; "
    "open(sys.argv[1], 'w').close(); "
    "os.read(os.open(sys.argv[2], os.O_RDONLY), 1); "
    "print('ready', flush=True); sys.stdin.read()"
)
"""Is started, and ready once somebody has written into a pipe; ends with its input."""


async def test_a_reload_ends_no_child_that_is_just_starting(tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    os.mkfifo(gate)
    child = Child("slow", ["-c", ONCE_ASKED, str(begun), str(gate)])
    supervisor, keepers = Supervisor(child, []), list[asyncio.Task[int]]()
    starting = asyncio.create_task(supervisor.start(keepers))

    async def is_begun() -> bool:
        # The child may be there before this process knows of it.
        return begun.exists() and child.process is not None

    await eventually(is_begun)

    supervisor.reload()
    # Opened for both: a child that has ended keeps nobody waiting.
    pipe = os.open(gate, os.O_RDWR)
    os.write(pipe, b"1")
    await starting

    is_ready = child.is_ready.is_set()
    await supervisor.stop(keepers)
    os.close(pipe)
    assert is_ready
