"""Make the HTTP clients of this process: their proxies and trusted certificates.

``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` apply to each request by
its URL. A request to this machine never goes through a proxy. Webhooks use no proxy,
because they connect to an address that was checked (`keyturn.gateway.webhooks`).
"""

from __future__ import annotations

import os
import ssl
from functools import cache
from ipaddress import ip_address
from urllib.request import getproxies, proxy_bypass

import aiohttp
import certifi
from yarl import URL

from keyturn.gateway.errors import SettingsError

_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_SECURE = {"https", "wss"}

_OUT_OF_TIME = {9, 10}
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""

# Subclasses before their base classes.
_REASONS: dict[type[Exception], str] = {
    aiohttp.ClientConnectorCertificateError: (
        "its certificate is not trusted here; SSL_CERT_FILE names others"
    ),
    aiohttp.ClientSSLError: "no TLS is spoken there; is https:// right?",
    aiohttp.ClientConnectorDNSError: "no machine of this name was found",
    aiohttp.ClientConnectorError: "no program listens there, or no route leads there",
}


def outgoing(
    connector: aiohttp.TCPConnector | None = None, *, timeout_s: float = 300.0
) -> aiohttp.ClientSession:
    """Return a new HTTP client, which the caller closes.

    Args:
        connector: in place of a default one.
        timeout_s: time-out of a request without a separate limit.
    """
    # The environment of a process does not change, and a lookup takes some time.
    proxy_of = cache(proxy_for)

    async def use_proxy(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        # Also replaces a proxy that the library has read from the environment.
        proxy = proxy_of(request.url.scheme, request.url.host or "")
        request.update_proxy(proxy, None, None)
        return await handler(request)

    return aiohttp.ClientSession(
        connector=connector or aiohttp.TCPConnector(ssl=trusted()),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=30.0),
        middlewares=(use_proxy,),
    )


def proxy_for(scheme: str, host: str) -> URL | None:
    """Return the proxy of the environment for a host; None without one.

    Raises:
        SettingsError: the proxy does not speak HTTP.
    """
    if _is_this_machine(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    named = proxies.get("https" if scheme in _SECURE else "http") or proxies.get("all")
    if not named:
        return None
    proxy = URL(named if "://" in named else f"http://{named}")
    if proxy.scheme not in {"http", "https"}:
        # Without its address, which may contain a password.
        raise SettingsError(
            f"The proxy of the environment for {host!r} is a {proxy.scheme!r} proxy; "
            "set HTTPS_PROXY to an http:// proxy, or add the host to NO_PROXY."
        )
    return proxy


@cache
def trusted() -> ssl.SSLContext:
    """Return the certificates that a client trusts: the system's and Mozilla's.

    ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` replace both.
    """
    context = ssl.create_default_context()
    if not any(map(os.environ.get, _CERTIFICATES)):
        context.load_verify_locations(certifi.where())
    return context


def reason(error: Exception) -> str:
    """Return why there is no answer; in words if the address may be wrong."""
    cause = getattr(error, "certificate_error", None)
    if getattr(cause, "verify_code", None) in _OUT_OF_TIME:
        return "its certificate is not valid now, by the clock of this machine"
    found = (why for kind, why in _REASONS.items() if isinstance(error, kind))
    # Without the text of other errors, which may quote the answer.
    return next(found, type(error).__name__)


def pause_s(retry_after: str) -> float | None:
    """Return the seconds in a ``Retry-After`` header; None for a date or other text."""
    is_number = retry_after.isascii() and retry_after.isdigit()
    return float(retry_after[:9]) if is_number else None


def _is_this_machine(host: str) -> bool:
    try:
        address = ip_address(host)
        # Python before 3.13 does not unwrap ::ffff:127.0.0.1.
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
