"""HTTP API: what a gateway has for agents of other processes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from twokey.gateway.api.serving import serving_api
from twokey.gateway.config import Settings
from twokey.gateway.embed import Twokey


@asynccontextmanager
async def serving_others(settings: Settings, twokey: Twokey) -> AsyncGenerator[str]:
    """Serve the HTTP API while the block runs; webhooks are sent by `Twokey`.

    Yields:
        The URL of the API; "" where the settings have none.

    Raises:
        SettingsError: when an address or a certificate cannot be used.
    """
    async with serving_api(
        settings,
        twokey.store,
        twokey.service,
        twokey.reviews,
        twokey.registration,
    ) as url:
        yield url
