"""Run the sandbox (a local fake Slack) alone, for another bot or for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from keyturn.cli.console import option, port_option
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.store.embedded.folder_lock import FolderLock
from keyturn.sandbox.serve import serve

# Lock the file of a sandbox, so that one process at a time uses it.
#
# Two sandboxes on one file would overwrite each other's messages. With one store
# between them, a bot would draw its cards in one sandbox while people click in the
# other.


@contextmanager
def only_user(kept: Path) -> Generator[FolderLock]:
    """Lock the file of a sandbox.

    The lock file contains the address of the sandbox's page.

    Raises:
        SettingsError: when another process has the lock, or it cannot be written.
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


PORT = 8766


def sandbox(
    host: Annotated[str, typer.Option(help="Interface to listen on.")] = "127.0.0.1",
    port: Annotated[int, port_option("Port")] = PORT,
    request_url: Annotated[
        str, option("URL", "Deliver by signed HTTP; else Socket Mode.")
    ] = "",
    keep: Annotated[
        Path | None, option("FILE", "Keep the workspace in this file.")
    ] = None,
) -> None:
    """Run a local Slack workspace that refuses what Slack refuses.

    It prints the address of its page and the settings of a bot: paste the settings into
    another terminal, and start 'keyturn bot' or your own bot there. Its channels are
    C0GENERAL and C0APPROVALS, its groups S0SUPPORT (U0ANA, U0BEN) and S0SENIOR
    (U0CHLOE).

    Examples:
      keyturn sandbox                                             a local Slack
      keyturn sandbox --request-url http://127.0.0.1:3000/events  over HTTP
    """
    how = partial(serve, request_url=request_url, state_path=keep, announce=typer.echo)
    try:
        # The sandbox itself refuses a folder.
        with nullcontext() if keep is None or keep.is_dir() else only_user(keep):
            asyncio.run(how(host, port))
    except OSError as error:
        # An error with a file name concerns the saved workspace, otherwise the port.
        where = f"{error.filename!r}: " if error.filename else ""
        raise SettingsError(f"{where}{error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(str(error)) from error
