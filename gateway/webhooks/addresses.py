"""Which addresses a webhook may be sent to: server-side request forgery is refused.

The name in a URL is chosen by an operator, but what it resolves to is decided by who
answers for the name, and may change at any time. So the addresses are checked, each
time, and the connection goes to the ones that were checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from aiohttp.abc import AbstractResolver, ResolveResult
from typing_extensions import override

from twokey.gateway.errors import TwokeyError

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


class AddressRefused(TwokeyError, OSError):
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
