"""Send one message over HTTPS to an untrusted receiver.

Redirects are not followed, no proxy of the environment is used, and nothing is looked
up twice. The whole attempt has one deadline. Of the answer, only the status and the
requested pause are read.

An operator chooses the host name in a URL, but the owner of the name controls its
addresses and can change them at any time (server-side request forgery). So the
addresses are checked each time, and the connection uses exactly the checked ones.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from typing_extensions import override

from keyturn.gateway.errors import KeyturnError, SettingsError
from keyturn.gateway.webhook_settings import WebhookSettings

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host as text."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Some versions of Python treat some of these as global, although each can reach a
# non-global address: IPv4 addresses embedded in IPv6, relays, services of a cloud host.
_NEVER = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "168.63.129.16/32",
        "::/96",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
]
_PRIVATE = [
    ipaddress.ip_network(text)
    for text in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "::1/128",
        "fc00::/7",
    )
]

# Where clouds offer credentials of a machine, at addresses that look private: Alibaba,
# Amazon (all of its services), Google and Oracle.
_SERVICES = [
    ipaddress.ip_network(text)
    for text in (
        "100.100.100.200/32",
        "fd00:ec2::/32",
        "fd20:ce::254/128",
        "fd00:c1::a9fe:a9fe/128",
    )
]

# Not the shared threads: an unreachable name server keeps these busy.
_LOOK_UPS = ThreadPoolExecutor(4, thread_name_prefix="webhook-names")


class AddressRefused(KeyturnError, OSError):
    """A host has an address that webhooks must not use."""


def is_allowed(text: str, *, may_be_private: bool = False) -> bool:
    """Return whether a webhook may be sent to an address.

    Args:
        text: the address; one with a zone is refused.
        may_be_private: it may be this machine or in a private network. Link-local
            addresses, where clouds offer credentials, are always refused.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if getattr(address, "scope_id", None) is not None:
        return False
    if may_be_private and _in(address, _PRIVATE):
        return not _in(address, _SERVICES)
    return (
        not _in(address, _NEVER)
        and address.is_global
        and not (
            address.is_multicast
            or address.is_reserved
            or address.is_unspecified
            or address.is_link_local
        )
    )


def _in(
    address: _Address,
    networks: Collection[ipaddress.IPv4Network | ipaddress.IPv6Network],
) -> bool:
    return any(
        address.version == network.version and address in network
        for network in networks
    )


async def system_resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host from this machine's resolver."""

    def look_up() -> list[str]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(one[4][0]) for one in found))

    return await asyncio.get_running_loop().run_in_executor(_LOOK_UPS, look_up)


class CheckedResolver(AbstractResolver):
    """Resolves a host for one connection, and refuses forbidden addresses.

    Args:
        private_hosts: names of hosts that may have a private address.
        resolve: returns addresses.
    """

    def __init__(
        self, private_hosts: Collection[str], resolve: Resolve = system_resolve
    ) -> None:
        self._private_hosts = frozenset(private_hosts)
        self._resolve = resolve

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host.

        Raises:
            AddressRefused: when one of them is forbidden: a name that mixes public and
                internal addresses is as suspicious as an internal one.
            OSError: when the host is unknown.
        """
        may_be_private = host.lower().rstrip(".") in self._private_hosts
        found = await self._resolve(host, port)
        if not found:
            raise OSError(f"{host!r} has no address")
        for address in found:
            if not is_allowed(address, may_be_private=may_be_private):
                raise AddressRefused(
                    f"{host!r} has the address {address!r}, which is private or of "
                    "a special kind; 'webhooks.private_hosts' names hosts for which "
                    "that is meant."
                )
        return [self._row(host, port, address) for address in found]

    @override
    async def close(self) -> None:
        """Close nothing."""

    def _row(self, host: str, port: int, address: str) -> ResolveResult:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return ResolveResult(
            hostname=host,
            host=address,
            port=port,
            family=family,
            proto=0,
            # So that no later layer looks the address up again.
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )


GONE = 410
"""The receiver does not want such messages any more (Standard Webhooks)."""

_LONGEST_PAUSE_S = 3600.0
_LONGEST_ERROR = 200

# Subclasses before their base classes.
_REASONS: dict[type[Exception], str] = {
    aiohttp.ClientConnectorCertificateError: "its certificate is not trusted",
    aiohttp.ClientConnectorDNSError: "the name of its host cannot be looked up",
    aiohttp.ClientConnectorSSLError: "it does not speak TLS as it should",
    aiohttp.ClientConnectorError: "no connection to it could be made",
    aiohttp.ServerDisconnectedError: "it closed the connection without an answer",
}


@dataclass(frozen=True)
class Answer:
    """The answer of a receiver.

    Attributes:
        status: HTTP status; 0 without an answer.
        error: why the message was not received; "" if it was.
        pause_s: the pause that the receiver asks for.
    """

    status: int = 0
    error: str = ""
    pause_s: float = 0.0


class Poster:
    """Sends messages; the caller closes it.

    Args:
        settings: private hosts, certificates and time-out.
        resolve: returns the addresses of a host.

    Raises:
        SettingsError: when the file of certificates cannot be used.
    """

    def __init__(
        self, settings: WebhookSettings, resolve: Resolve = system_resolve
    ) -> None:
        self._timeout_s = settings.timeout_s
        connector = aiohttp.TCPConnector(
            resolver=CheckedResolver(settings.private_hosts, resolve),
            use_dns_cache=False,
            # So that each message uses an address that was checked for it.
            force_close=True,
            ssl=trust(settings.certificates),
            limit=0,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a message and return the answer; never fails."""
        given = {
            **headers,
            "Content-Type": "application/json",
            "User-Agent": "Keyturn-Webhooks/1",
            "Accept-Encoding": "identity",
        }
        try:
            # The body is not read: leaving the block closes the connection.
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.post(
                    url, data=body, headers=given, allow_redirects=False
                ) as response,
            ):
                return _answer(response.status, response.headers.get("Retry-After", ""))
        except TimeoutError:
            return Answer(error=f"no answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(error=_why(error))


def _answer(status: int, retry_after: str) -> Answer:
    if status // 100 == 2:  # noqa: PLR2004 - 2xx
        return Answer(status)
    why = f"status {status}"
    if status // 100 == 3:  # noqa: PLR2004 - 3xx
        why += ", and redirects are not followed"
    return Answer(status, why, _pause_s(retry_after))


def _pause_s(text: str) -> float:
    """Return the requested pause in seconds; 0 if the text is invalid."""
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), _LONGEST_PAUSE_S)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        # OverflowError comes from a day or year of many digits.
        return 0.0
    if at.tzinfo is None:
        return 0.0
    # The time is the receiver's; a difference of the clocks matters little here.
    left_s = (at - datetime.now(UTC)).total_seconds()  # noqa: TID251 - as above
    return min(max(left_s, 0.0), _LONGEST_PAUSE_S)


def _why(error: Exception) -> str:
    """Return why there was no answer, in a few fixed words."""
    # The useful sentence may be in the cause of a connection error.
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, AddressRefused):
            return str(found)[:_LONGEST_ERROR].rstrip(".")
        found = getattr(found, "os_error", None) or found.__cause__
    for kind, why in _REASONS.items():
        if isinstance(error, kind):
            return why
    # Without its text, which may quote the receiver's data.
    return f"no answer that can be read ({type(error).__name__})"


def trust(certificates: Path | None) -> ssl.SSLContext:
    """Return the TLS settings, with the trusted certificates.

    Raises:
        SettingsError: when the file of certificates cannot be used.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificates is not None:
        try:
            context.load_verify_locations(certificates)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"The certificates {str(certificates)!r} cannot be used "
                f"({error.strerror}); see 'webhooks.certificates'."
            ) from error
    return context
