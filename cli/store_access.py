"""Open the configured store for one query or change of a command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from twokey.cli.command_context import CommandContext
from twokey.gateway.config import Settings
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.store import Store
from twokey.gateway.trust.keyring import Keyring

T = TypeVar("T")


@asynccontextmanager
async def open_configured(
    settings: Settings,
    *,
    insecure_dev: bool = False,
    waits: bool = False,
    keyring: Keyring | None = None,
) -> AsyncGenerator[Store]:
    """Open the store that the settings name; see `open_store`."""
    async with open_store(
        settings.store_url,
        settings.data_dir,
        secrets=settings.secret_keys(),
        shards=settings.shards,
        tenant=settings.tenant,
        split_by_agent=settings.split_by_agent,
        insecure_dev=insecure_dev,
        waits=waits,
        keyring=keyring,
        encrypt=settings.encrypt_store,
    ) as store:
        store.keep_audit(*settings.audit)
        yield store


def use_store(command: CommandContext, ask: Callable[[Store, str], Awaitable[T]]) -> T:
    """Open the store, let ``ask`` use it for the tenant of the settings, close it.

    A store that could lose what it acknowledges will do: it is no reason to let an
    agent go on, or to keep anybody from looking.
    """
    settings = command.settings()

    async def asked() -> T:
        async with open_configured(settings, insecure_dev=True) as store:
            return await ask(store, settings.tenant)

    return asyncio.run(asked())
