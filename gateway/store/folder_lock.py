"""Let one server at a time write to a folder, and tell others where it listens."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class FolderLock:
    """An advisory lock on a file; it holds as long as a process has the file open.

    A process that inherits `descriptor` holds the lock too. The kernel lets go of it
    when the last of them ends, also by kill -9, so no stale lock is ever left behind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> bool:
        """Take the lock if nobody else holds it, and say whether it is ours."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let go of the lock and keep the file open."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def write(self, text: str) -> None:
        """Leave a line for those who find the lock taken."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode("utf-8"), 0)

    def read(self) -> str:
        """Return what the holder of the lock wrote; "" when nothing yet."""
        return os.pread(self.descriptor, 4096, 0).decode("utf-8", "replace")

    def close(self) -> None:
        """Let go of the lock, unless another process inherited it."""
        os.close(self.descriptor)
