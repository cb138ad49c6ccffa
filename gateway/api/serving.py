"""Serve the HTTP API of a gateway at the address of its settings."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from importlib import import_module

from keyturn.gateway.api.api_keys import ApiKeys
from keyturn.gateway.api.decide import Decisions
from keyturn.gateway.api.operations import Readiness, Tenant
from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.api.server import Api, KeyedRoute
from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.guarded_server import Limits, listening
from keyturn.gateway.protocol.http_api import MAX_BODY_BYTES
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.report.event_feed import EventFeed
from keyturn.gateway.service.run.agents import AgentService, RemoteRunService
from keyturn.gateway.service.run.approval_readings import ApprovalReadings
from keyturn.gateway.service_settings import ApiSettings
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

DRAIN_S = 10.0
"""How long open requests may take when the process stops."""


Routes = Callable[[Tenant, RateLimits], Mapping[str, KeyedRoute]]
"""Returns requests that another package answers, by their path."""


@asynccontextmanager
async def serving_api(
    settings: Settings,
    store: Store,
    service: AgentService,
    reviews: ReviewService,
    ready: Readiness,
    *,
    routes: Routes | None = None,
) -> AsyncGenerator[str]:
    """Serve the HTTP API while the block runs, if the settings have an address.

    Args:
        settings: settings of the process.
        store: the store of the gateway.
        service: the service for agents.
        reviews: records decisions of people with a token.
        ready: returns the problems of this process, for `/readyz`.
        routes: requests that other packages answer; None: there are none.

    Yields:
        Its URL; "" without an address.

    Raises:
        SettingsError: when the address or the certificate cannot be used.
    """
    address = settings.api.listen
    if address is None:
        yield ""
        return
    tenant = settings.tenant
    kept = ApiKeyStore(store, tenant=tenant)
    feed = EventFeed(store, tenant=tenant)

    async def report(kind: SecurityKind, about: str, name: str, evidence: str) -> None:
        event = SecurityEvent(
            kind=kind, tenant=tenant, about=about, name=name, evidence=evidence
        )
        await store.security.report(store.keys_of_tenant(tenant), event)

    api = Api(
        ApiKeys(kept.seals, kept.find),
        # Only keys of this tenant are found: each record is sealed for its tenant.
        tenant_services(store, service, feed, tenant=tenant),
        limits=RateLimits(
            settings.api.requests_per_minute,
            megabytes_per_day=settings.api.megabytes_per_day,
            # The other half answers at once, such as claims and results.
            most_waits=settings.api.connections // 2,
        ),
        ready=ready,
        report=report,
        clock_s=store.conn.clock.now_s,
    )
    if settings.api.people is not None:
        # Imported only here: few gateways use OpenID Connect and its package.
        oidc = import_module("keyturn.gateway.api.person_tokens")
        tokens = oidc.PersonTokens(settings.api.people, now_s=store.conn.clock.now_s)
        api.decisions = Decisions(tokens, reviews)
    api.routes = routes(api.tenant, api.limits) if routes else {}
    limits = Limits(connections=settings.api.connections, body_bytes=MAX_BODY_BYTES)
    server, tls = api.server(limits), _tls(settings.api)
    names = "'api.listen' (KEYTURN_API_LISTEN)"
    async with (
        aclosing(feed),
        listening(server, address, names, drain_s=DRAIN_S, tls=tls) as url,
    ):
        logger.info("api.listening url=%s", url)
        try:
            yield url
        finally:
            # Before the server drains: waiting requests are answered now, and clients
            # ask another process.
            api.is_stopping = True
            feed.end_waits()


def tenant_services(
    store: Store, service: AgentService, feed: EventFeed, *, tenant: str
) -> Tenant:
    """Return the services for the agents of one tenant over HTTP."""
    return Tenant(
        port=service,
        runs=RemoteRunService(store, service, feed, tenant=tenant),
        readings=ApprovalReadings(store, lambda: service.policy_now, tenant=tenant),
        events=feed,
    )


def _tls(settings: ApiSettings) -> ssl.SSLContext | None:
    if settings.certificate is None or settings.private_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.private_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"The certificate {str(settings.certificate)!r} with the key "
            f"{str(settings.private_key)!r} cannot be used ({error.strerror}); see "
            "'api.certificate' and 'api.private_key'."
        ) from error
    return context
