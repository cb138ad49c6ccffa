"""Send one message over HTTPS to a receiver that may do anything.

No redirect is followed, no proxy of the environment is used, nothing is looked up
twice, the whole attempt has one deadline, and of the answer only its status is read and
how long to wait.

An operator chooses the name in a URL, but whoever answers for the name decides what it
resolves to, and may change that at any time (server-side request forgery). So the
addresses are checked each time, and the connection goes to the ones that were checked.
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
"""Returns the addresses of a host, as texts."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Some versions of Python take some of these for global, and each reaches something that
# is not: IPv4 addresses inside those of IPv6, relays, services of a cloud's host.
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

# Where clouds keep credentials of a machine, at addresses that look like private ones:
# of Alibaba, of Amazon (all of its services), of Google, and of Oracle.
_SERVICES = [
    ipaddress.ip_network(text)
    for text in (
        "100.100.100.200/32",
        "fd00:ec2::/32",
        "fd20:ce::254/128",
        "fd00:c1::a9fe:a9fe/128",
    )
]

# Not the threads that others share: a name server that is away keeps these busy.
_LOOK_UPS = ThreadPoolExecutor(4, thread_name_prefix="webhook-names")


class AddressRefused(KeyturnError, OSError):
    """A host has an address to which no webhook is sent."""


def is_allowed(text: str, *, may_be_private: bool = False) -> bool:
    """Return whether a webhook may be sent to an address.

    Args:
        text: the address; one with a zone is refused.
        may_be_private: it may be of this machine or of a private network. Link-local
            addresses, where clouds keep credentials, are refused all the same.
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
    """Return the addresses of a host, by the resolver of this machine."""

    def look_up() -> list[str]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(one[4][0]) for one in found))

    return await asyncio.get_running_loop().run_in_executor(_LOOK_UPS, look_up)


class CheckedResolver(AbstractResolver):
    """Resolves a host for one connection, and refuses addresses that are not allowed.

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
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,
    ) -> list[ResolveResult]:
        """Return the addresses of a host.

        Raises:
            AddressRefused: when one of them is not allowed: a name that is half ours is
                no more to be trusted than one that is wholly ours.
            OSError: when the host is not known.
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
            # So that nothing behind this looks the address up again.
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )


GONE = 410
"""The receiver wants no such messages any more (Standard Webhooks)."""

_LONGEST_PAUSE_S = 3600.0
_LONGEST_ERROR = 200

# Each before those that it is a kind of.
_REASONS: dict[type[Exception], str] = {
    aiohttp.ClientConnectorCertificateError: "its certificate is not trusted",
    aiohttp.ClientConnectorDNSError: "the name of its host cannot be looked up",
    aiohttp.ClientConnectorSSLError: "it does not speak TLS as it should",
    aiohttp.ClientConnectorError: "no connection to it could be made",
    aiohttp.ServerDisconnectedError: "it closed the connection without an answer",
}


@dataclass(frozen=True)
class Answer:
    """What a receiver answered.

    Attributes:
        status: of HTTP; 0 where there was no answer.
        error: why it does not count as received; "" where it does.
        pause_s: how long the receiver asks to wait.
    """

    status: int = 0
    error: str = ""
    pause_s: float = 0.0


class Poster:
    """Sends messages; to be closed.

    Args:
        settings: which hosts may be private, whom to trust, how long to wait.
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
            # So that each message goes to an address that was checked for it.
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
        """Send a message and return what came of it; never fails."""
        given = {
            **headers,
            "Content-Type": "application/json",
            "User-Agent": "Keyturn-Webhooks/1",
            "Accept-Encoding": "identity",
        }
        try:
            # The body of the answer is not read: leaving the block ends the connection.
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
    """Return how long to wait, in seconds; 0 for what says nothing."""
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), _LONGEST_PAUSE_S)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        # The latter for a day or year of many digits.
        return 0.0
    if at.tzinfo is None:
        return 0.0
    # The receiver's clock said when; how far ours is from it does not matter much here.
    left_s = (at - datetime.now(UTC)).total_seconds()  # noqa: TID251 - as above
    return min(max(left_s, 0.0), _LONGEST_PAUSE_S)


def _why(error: Exception) -> str:
    """Return why there was no answer, in a few words of ours."""
    # An error of a connection holds the one behind it, with the sentence that helps.
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, AddressRefused):
            return str(found)[:_LONGEST_ERROR].rstrip(".")
        found = getattr(found, "os_error", None) or found.__cause__
    for kind, why in _REASONS.items():
        if isinstance(error, kind):
            return why
    # Not its text, which may quote what the receiver sent.
    return f"no answer that can be read ({type(error).__name__})"


def trust(certificates: Path | None) -> ssl.SSLContext:
    """Return whom messages are sent to, by their certificates.

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
