"""Lock what a sandbox keeps, so that one process at a time uses it.

Two sandboxes on one file would each write their own messages over those of the other;
with the store of one folder between them, a bot would draw its cards in one sandbox,
and people would click in the other.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from twokey.gateway.errors import SettingsError
from twokey.gateway.store.folder_lock import FolderLock


@contextmanager
def only_user(kept: Path) -> Generator[FolderLock]:
    """Hold the lock on a file in which a sandbox is kept.

    Its holder writes the address of its page into the lock.

    Raises:
        SettingsError: when another process holds it, or it cannot be written.
    """
    path = kept.with_name(f"{kept.name}.lock")
    try:
        opened = FolderLock(path)
    except OSError as error:
        raise SettingsError(
            f"{str(path)!r} cannot be written ({error.strerror}). Start this where "
            "this user can write."
        ) from error
    with opened as lock:
        if not lock.take():
            page = lock.read()
            shown = f", at {page}" if page else ""
            raise SettingsError(
                f"Another process runs with {str(kept)!r} already{shown}. Use that "
                "one, stop it first, or start this in another folder."
            )
        yield lock
