"""Open the configured store for one query or change of a command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import typer

from keyturn.cli.command_context import CommandContext, command_context
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.store.store import ENGINE_FOLDER, Store, open_store
from keyturn.gateway.trust.key_folder import Keyring

S = TypeVar("S")
T = TypeVar("T")

SANDBOX_FOLDER = "sandbox"
"""Folder of the data of ``keyturn run --sandbox``, in the data folder."""


@asynccontextmanager
async def open_configured(
    settings: Settings,
    *,
    insecure_dev: bool = False,
    waits: bool = False,
    keyring: Keyring | None = None,
) -> AsyncGenerator[Store]:
    """Open the store of the settings; see `open_store`."""
    async with open_store(
        settings.store_url,
        settings.data_dir,
        secrets=settings.secret_keys(),
        tenant=settings.tenant,
        insecure_dev=insecure_dev,
        waits=waits,
        keyring=keyring,
        encrypt=settings.encrypt_store,
    ) as store:
        store.keep_audit(*settings.audit)
        yield store


def use_store(
    ctx: typer.Context,
    ask: Callable[[Store, str], Awaitable[T]],
    *,
    makes: bool = False,
    has_keyring: bool = False,
) -> T:
    """Open the store, call ``ask`` with it and the tenant of the settings, close it.

    It works without a gateway. A store that is not durable is accepted: that must not
    prevent a freeze or a query.

    Args:
        ctx: of the command, with the settings.
        ask: uses the store.
        makes: make an embedded store if there is none yet.
        has_keyring: open the store with the signing keys of the settings.

    Raises:
        SettingsError: when there is no store yet, see `require_store`.
    """
    settings = command_context(ctx).settings()
    if not makes:
        require_store(settings)

    async def asked() -> T:
        keyring = Keyring.of(settings) if has_keyring else None
        async with open_configured(
            settings, insecure_dev=True, keyring=keyring
        ) as store:
            return await ask(store, settings.tenant)

    return asyncio.run(asked())


def use_service(
    ctx: typer.Context,
    of: Callable[..., S],
    ask: Callable[[S], Awaitable[T]],
    **how: bool,
) -> T:
    """Open the store, call ``ask`` with a service of its tenant; see `use_store`."""
    return use_store(ctx, lambda store, name: ask(of(store, tenant=name)), **how)


def is_there(settings: Settings) -> bool:
    """Return True if there is a store or the settings have an address of one."""
    return bool(settings.store_url) or may_be_there(settings.data_dir / ENGINE_FOLDER)


def has_sandbox(settings: Settings) -> bool:
    """Return True if a sandbox of these settings was started, with its own store."""
    return may_be_there(settings.data_dir / SANDBOX_FOLDER / ENGINE_FOLDER)


def nothing_is_here(command: CommandContext, settings: Settings) -> bool:
    """Return True if a folder contains neither settings nor data of Keyturn."""
    found = (command.settings_file, settings.policy.path, settings.data_dir)
    return not settings.store_url and not any(map(may_be_there, found))


def require_store(settings: Settings) -> None:
    """Refuse a command on stored data if no embedded store was ever started here.

    Opening it would make an empty one. No running process uses that, so a freeze in it
    would have no effect, and its contents would say nothing about the intended store.

    Raises:
        SettingsError: names the folder, and the right place for the command.
    """
    if is_there(settings):
        return
    raise SettingsError(
        f"Nothing was read or changed: there is no store in "
        f"{str(settings.data_dir)!r}. The first 'keyturn run' makes one. If Keyturn "
        "runs elsewhere, start in the folder of its keyturn.yml or name that file "
        "(--config), and give this command the KEYTURN_DATA_DIR, or the "
        "KEYTURN_REDIS_URL and KEYTURN_SECRET, that Keyturn runs with."
    )


def may_be_there(path: Path) -> bool:
    """Return True if a path exists, or if this user may not check."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True  # opening it reports the problem
    return True
