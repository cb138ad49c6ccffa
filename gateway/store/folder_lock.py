"""Advisory file lock on a data folder; its holder publishes the server's address."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self


class FolderLock:
    """An advisory lock on a file; it holds as long as a process has the file open.

    A process that inherits `descriptor` holds the lock too. The kernel lets go of it
    when the last of them ends, also by kill -9, so no stale lock is ever left behind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # O_CLOEXEC: only a child that is given the descriptor by name may inherit the
        # lock. Without it any subprocess of an agent's tool would hold it.
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Self:
        """Keep the file open for a block; the lock is still to be taken."""
        return self

    def __exit__(self, *_raised: object) -> None:
        """Close the file."""
        self.close()

    def take(self, *, is_shared: bool = False) -> bool:
        """Take the lock if nobody else holds it, and say whether it is ours.

        Several may hold it if all of them share it.
        """
        how = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        try:
            # flock and not lockf: a POSIX lock belongs to a process, which loses it
            # when it closes any other descriptor of the file, and is not inherited.
            fcntl.flock(self.descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def write(self, text: str) -> None:
        """Leave a line for those who find the lock taken."""
        # Truncated first: a reader may find it empty, which means "not yet", and never
        # finds the end of an older line.
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode("utf-8"), 0)

    def read(self) -> str:
        """Return what the holder of the lock wrote; "" when nothing yet."""
        return os.pread(self.descriptor, 4096, 0).decode("utf-8", "replace")

    def close(self) -> None:
        """Let go of the lock, unless another process inherited it."""
        os.close(self.descriptor)
