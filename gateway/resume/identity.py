"""Identity of a checkpoint database: a random id that is kept in the database itself.

A copy and a restored backup have the id of the original; the file tells two live copies
apart.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

_SELECT = "SELECT id FROM twokey_identity WHERE one = 1"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Identity:
    """Which checkpoint database a process has open.

    Attributes:
        id: kept in the database.
        file: which file of which machine it is; "" when it is not a file.
        shown: the same for people, without a password.
    """

    id: str
    file: str
    shown: str


def identity_statements() -> tuple[str, ...]:
    """Return what gives a database an id, unless it has one."""
    table = "twokey_identity (one INTEGER PRIMARY KEY, id TEXT)"
    row = f"(1, '{secrets.token_hex(16)}')"
    return (
        f"CREATE TABLE IF NOT EXISTS {table}",
        f"INSERT INTO twokey_identity VALUES {row} ON CONFLICT DO NOTHING",  # noqa: S608 - hex digits of our own
    )


async def identity_of(saver: BaseCheckpointSaver[Any], place: str) -> Identity:
    """Return the identity of an open checkpointer.

    Args:
        saver: from `twokey.gateway.resume.checkpoints.open_checkpoints`.
        place: the path or URL that it was opened with.
    """
    if isinstance(saver, AsyncSqliteSaver):
        rows = list(await saver.conn.execute_fetchall(_SELECT))
        file = await asyncio.to_thread(_file, place)
        return Identity(str(rows[0][0]), file, f"{place!r} on {socket.gethostname()!r}")
    pool: Any = saver
    async with pool.conn.connection() as connection:
        row = await (await connection.execute(_SELECT)).fetchone()
    parts = urlsplit(place)
    shown = f"Postgres {parts.path.lstrip('/')!r} at {parts.hostname or 'a socket'!r}"
    return Identity(str(row["id"]), "", shown)


def _file(place: str) -> str:
    """Name a file the same for every process that can have it open with others.

    Containers on one machine may share a file under different names of the host.
    """
    state = Path(place).stat()
    boot = _BOOT.read_text("ascii").strip() if _BOOT.exists() else socket.gethostname()
    # Device and inode name a file on one running machine; the boot id names the
    # machine.
    return f"{boot}:{state.st_dev}:{state.st_ino}"
