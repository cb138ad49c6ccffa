"""Run an MCP gate: over stdin and stdout, or over streamable HTTP.

Over HTTP, a token of the company's issuer (`api.people` in the settings) identifies the
caller. This person becomes the requester, who cannot approve the calls. The token is
not passed to any upstream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import NotificationOptions
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from typing_extensions import override

from keyturn.connect.gate import Gate
from keyturn.connect.mcp.calls import Caller, Calls, gate_secret
from keyturn.connect.mcp.definitions import Definitions
from keyturn.connect.mcp.passage import Passage
from keyturn.connect.mcp.passing import Passing
from keyturn.connect.mcp.server import INSTRUCTIONS, Context, GateOptions, GateServer
from keyturn.connect.mcp.upstreams import Upstream
from keyturn.gateway.api.person_tokens import Fetch, PersonTokens, fetch
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.background import GRACE_S, begun
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.errors import NotAllowed, SettingsError
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.service_settings import Address, PeopleSettings


class Tokens(TokenVerifier):
    """Accepts the tokens of people in the settings.

    Args:
        people: the settings.
        gate: the gateway; its clock counts.
        fetch: requests the issuer's keys.

    Attributes:
        issuer: URL of the issuer, for the client's sign-in.
    """

    def __init__(
        self, people: PeopleSettings, gate: HttpGateway, *, fetch: Fetch = fetch
    ) -> None:
        clock, self.issuer = gate.connection.clock, people.issuer

        def now_s() -> float:
            return time.time() - clock.ahead_s  # noqa: TID251 - corrected

        self._tokens = PersonTokens(people, now_s=now_s, fetch=fetch)

    @override
    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the person of a token; None if it is refused."""
        try:
            found = await self._tokens.reviewer(token)
        except Refusal:
            return None  # `PersonTokens` has logged the reason
        claims = {"iss": self.issuer, "team": found.team, "name": found.name}
        return AccessToken(
            token="", client_id="", scopes=[], subject=found.user, claims=claims
        )


def signed_in(_ctx: object) -> Caller:
    """Return the caller of the current request.

    Raises:
        NotAllowed: the request has no valid token.
    """
    token = get_access_token()
    if token is None or not token.subject:
        raise NotAllowed("This request has no token of a person, so nothing ran.")
    claims = token.claims or {}
    person = Person(
        team=claims.get("team", ""), user=token.subject, name=claims.get("name", "")
    )
    return Caller(person.user, person)


@asynccontextmanager
async def running(
    options: GateOptions,
    gate: Gate,
    *,
    caller: Callable[[Context], Caller] | None = None,
) -> AsyncGenerator[GateServer]:
    """Run a gate; at the end, wait until running calls are recorded.

    Raises:
        SettingsError: when there is no upstream, or two have the same name.
    """
    names = [spec.name for spec in options.upstreams]
    if not names or len({*names}) < len(names):
        raise SettingsError(
            f"The upstreams of a gate are {names}: give at least one, each with a "
            "different name."
        )
    upstreams = {
        spec.name: Upstream(spec, env=options.env) for spec in options.upstreams
    }
    secret = gate_secret(options.api_key, "calls")
    calls = Calls(secret, clock_s=time.monotonic)
    changed = asyncio.Event()
    definitions = Definitions(gate, options.agent, upstreams, changed.set)
    passage = Passage(gate, options.agent, upstreams, calls, definitions)
    passing = Passing(upstreams, options.passed)
    server = GateServer(options, passage, calls, definitions, passing, caller)
    server.server.instructions = INSTRUCTIONS + await passing.instructions()

    async def tell() -> None:
        while await changed.wait():
            changed.clear()
            passage.wake_all()
            await server.tell_changed()

    working = begun(passage.follow()), begun(tell())
    try:
        yield server
    finally:
        for one in working:
            one.cancel()
        await passage.finish_work(GRACE_S)
        await asyncio.gather(*(one.aclose() for one in upstreams.values()))


async def serve_stdio(server: GateServer) -> None:
    """Serve one client over stdin and stdout until it ends."""
    options: Any = server.server.create_initialization_options(
        NotificationOptions(tools_changed=True)
    )
    async with stdio_server() as (read, write):
        await server.server.run(read, write, options)


PATH = "/mcp"


def http_app(
    server: GateServer, address: Address, *, url: str = "", tokens: Tokens | None = None
) -> Starlette:
    """Return the gate as a web application.

    It refuses requests with a foreign host name: a page in a local browser could send
    them (DNS rebinding).

    Args:
        server: the gate.
        address: the address to listen at.
        url: public URL, of the proxy that ends TLS; "" for this machine only.
        tokens: verifies people; None accepts every client that reaches the address.

    Raises:
        SettingsError: when other machines could reach it without TLS or a token.
    """
    if not address.is_loopback and (tokens is None or not url.startswith("https://")):
        raise SettingsError(
            f"The gate at {address.url_host!r} can be reached from other machines: "
            "give --url, the https:// address of the proxy in front that ends TLS, and "
            "'api.people' in the settings, so that it knows who calls."
        )
    public = AnyHttpUrl(url or f"http://{address.url_host}{PATH}")
    names = {str(public.host), *(() if url else ("localhost", "127.0.0.1", "[::1]"))}
    hosts = [host for name in sorted(names) for host in (name, f"{name}:*")]
    security = TransportSecuritySettings(
        allowed_hosts=hosts,
        allowed_origins=[f"{public.scheme}://{host}" for host in hosts],
    )
    auth = None
    if tokens is not None:
        # Its audience is checked with the signature.
        auth = AuthSettings(
            issuer_url=AnyHttpUrl(tokens.issuer),
            resource_server_url=public,
            validate_token_resource=False,
        )
    return server.server.streamable_http_app(
        streamable_http_path=PATH,
        host=address.host,
        transport_security=security,
        auth=auth,
        token_verifier=tokens,
    )


async def serve_http(app: Starlette, address: Address) -> None:
    """Serve clients over streamable HTTP until the process is stopped."""
    config = uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        log_config=None,
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=5,
    )
    await uvicorn.Server(config).serve()
