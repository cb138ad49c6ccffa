"""Run only the gateway and its agents; it needs no Slack."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import typer

from keyturn.cli.command_context import (
    CommandContext,
    InsecureDev,
    command_context,
    configure_logs,
)
from keyturn.cli.stop_signals import run_until_stopped, serve
from keyturn.connect.hooks import hook_routes
from keyturn.connect.servers import connecting_servers
from keyturn.gateway.api.server import serving_api
from keyturn.gateway.config import Settings
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.health import Health, health_of, serving_health
from keyturn.gateway.trust.key_folder import Keyring, Role


def gateway(ctx: typer.Context, *, insecure_dev: InsecureDev = False) -> None:
    """Run the agents' side: workers, expiries and your agents.

    Examples:
      keyturn gateway  only the agents' side; start as many as you like
    """
    serve(_gateway(command_context(ctx), insecure_dev=insecure_dev))


async def _gateway(command: CommandContext, *, insecure_dev: bool) -> None:
    settings = command.settings()
    configure_logs(command, settings, insecure_dev=insecure_dev)
    keyring = Keyring.of(settings, Role.GATEWAY, Role.AUDIT)
    async with (
        Keyturn(settings, insecure_dev=insecure_dev, keyring=keyring) as keyturn,
        serving_agents(settings, keyturn) as url,
        serving_health(settings.metrics.listen, await _health(keyturn, settings)),
    ):
        names = ", ".join(settings.agent_names) or "no agents"
        runs = f"The gateway runs for {names}."
        await run_until_stopped(keyturn.store, runs, api_url=url)


@asynccontextmanager
async def serving_agents(settings: Settings, keyturn: Keyturn) -> AsyncGenerator[str]:
    """Serve agents in other processes and on servers; yield the URL of the API."""
    store, service, tenant = keyturn.store, keyturn.service, settings.tenant
    gated = settings.hooks.gated_servers
    routes = hook_routes(store, tenant=tenant, gated_servers=gated)
    given = settings, store, service, keyturn.reviews, keyturn.registration.ready
    async with (
        serving_api(*given, routes=routes) as url,
        connecting_servers(settings, store, service),
    ):
        yield url


async def _health(keyturn: Keyturn, settings: Settings) -> Health:
    ready = keyturn.registration.ready
    return await health_of(keyturn.reviews, ready, tenant=settings.tenant)
