"""Store 32 secret bytes in a file that only its owner can read."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from keyturn.gateway.errors import SettingsError

SIZE = 32
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP}
_HEX = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, for this user only.

    With `mkdir(parents=True)` the parents get the permissions of the umask, and a user
    with write access to them could replace the folder.

    Raises:
        OSError: one of them cannot be created.
    """
    if not folder.parent.exists():
        make_private(folder.parent)
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True, mode=0o700)
    if is_new:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, if its file system supports that.

    Raises:
        OSError: they may not be on the disk.
    """
    # A new name is on the disk only when its folder is.
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(opened)


def write_private(path: Path, data: bytes, *, replaces: bool = False) -> None:
    """Write a file for this user only; it appears complete or not at all.

    Raises:
        FileExistsError: the file exists, and is not to be replaced.
        OSError: it cannot be written.
    """
    make_private(path.parent)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # Created with its mode: before a later chmod, others could open it.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            # Before it gets its name: a crash must not leave an empty file.
            os.fsync(file.fileno())
        if replaces:
            draft.replace(path)
            # A killed process may have left its draft.
            for left in path.parent.glob(f".{path.name}.*"):
                left.unlink(missing_ok=True)
        else:
            # link, unlike rename, never replaces another process's file.
            os.link(draft, path)
        # Before its first use: a power cut must not lose a key in use.
        sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def parse_secrets(text: str) -> tuple[bytes, ...]:
    """Return the secrets of a string: the current one, then older ones, with commas.

    Each is 32 bytes, written as 64 hex digits.

    Raises:
        SettingsError: for any other text; does not show it.
    """
    found = [one.strip() for one in text.split(",")]
    for one in found:
        if _HEX.fullmatch(one) is None:
            raise SettingsError(
                f"KEYTURN_SECRET has {len(one)} characters and has to be 64 hex "
                "digits; make one with: openssl rand -hex 32 (older ones may follow, "
                "after commas)"
            )
    return tuple(map(bytes.fromhex, found))


def folder_secrets(folder: Path) -> tuple[bytes, ...]:
    """Return the secrets in a data folder: the current one, then the previous one.

    The first caller creates the current one.

    Raises:
        SettingsError: a file is not one of 32 bytes that only its owner can use.
    """
    key, old = load_or_create_secret(folder / "secret.key"), folder / "secret.old.key"
    with _usable(old):
        return (key, _load(old)) if old.exists() else (key,)


def load_or_create_secret(path: Path) -> bytes:
    """Return the secret of a file; the first caller creates it.

    Processes that start at the same time all return the same bytes: the file appears
    complete, under its name, for exactly one of them.

    Raises:
        SettingsError: it is not a file of 32 bytes that only its owner can use.
    """
    with _usable(path):
        if not path.exists():
            # Another process may create it at the same time; its bytes then count.
            with suppress(FileExistsError):
                write_private(path, secrets.token_bytes(SIZE))
        return _load(path)


@contextmanager
def _usable(path: Path) -> Generator[None]:
    """Turn an OSError into a `SettingsError` with the file and the next step."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"The secret {str(path)!r} cannot be used: {error.strerror}. Set "
            "'data_dir' to a folder this user can write, or set KEYTURN_SECRET."
        ) from error


def _load(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        # Of the open file and not of the path, which another process may have replaced.
        state = os.fstat(file.fileno())
        # One extra byte reveals a longer file without reading all of it.
        data = file.read(SIZE + 1)
    if stat.S_IMODE(state.st_mode) & 0o077:
        raise SettingsError(
            f"The secret {str(path)!r} can be used by other users of this machine; "
            f"run: chmod 600 {path}"
        )
    if len(data) != SIZE:
        raise SettingsError(
            f"The secret {str(path)!r} is not {SIZE} bytes long, so it was not written "
            "by Keyturn; restore it from a backup. If it is lost, see 'A lost secret' "
            "in docs/upgrade.md."
        )
    return data
