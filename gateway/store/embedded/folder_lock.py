"""Advisory file lock on a data folder; its holder publishes the server's address."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self


class FolderLock:
    """An advisory lock on a file, held while a process has the file open.

    Processes that inherit `descriptor` share the lock. The kernel releases it when the
    last of them ends, even after kill -9, so no stale lock remains.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # O_CLOEXEC: only a child that is passed the descriptor may inherit the lock.
        # Otherwise every subprocess of an agent's tool would hold it.
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Self:
        """Keep the file open for a block; call `take` to lock it."""
        return self

    def __exit__(self, *_raised: object) -> None:
        """Close the file."""
        self.close()

    def take(self, *, is_shared: bool = False) -> bool:
        """Try to take the lock without waiting; return whether it succeeded.

        A shared lock can have several holders.
        """
        how = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        try:
            # Not lockf: a process loses a POSIX lock when it closes any descriptor of
            # the file, and children do not inherit it.
            fcntl.flock(self.descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def write(self, text: str) -> None:
        """Write a line for processes that find the lock taken."""
        # Truncate first: a reader may find the file empty ("not yet"), but never the
        # rest of an older line.
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode("utf-8"), 0)

    def read(self) -> str:
        """Return the holder's line; "" if there is none yet."""
        return os.pread(self.descriptor, 4096, 0).decode("utf-8", "replace")

    def close(self) -> None:
        """Release the lock, unless another process inherited it."""
        os.close(self.descriptor)
