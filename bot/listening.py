"""Open the addresses on which the bot's web server answers."""

from __future__ import annotations

import errno
import socket
from contextlib import AsyncExitStack

from aiohttp import web

from twokey.bot.accepting import Acceptor
from twokey.bot.ingress import EVENTS_PATH, Ingress
from twokey.gateway.errors import SettingsError

HTTP_PORT = 3000
"""Where Slack reaches the bot by HTTP, unless the settings name another port."""

_BACKLOG = 128
_DRAIN_S = 10.0


def shared_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket from which several processes may accept.

    One socket and not ``SO_REUSEPORT``: what waits in the queue of a process that is
    killed would be lost with it, and macOS gives every connection to the last process.

    Raises:
        SettingsError: the address cannot be used; says what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error


async def serve(
    opening: AsyncExitStack,
    ingress: Ingress,
    *,
    host: str,
    port: int,
    listener: socket.socket | None = None,
) -> str:
    """Serve until the stack is closed; return the URL for Slack.

    Args:
        opening: closes the server.
        ingress: what answers.
        host: interface to listen on.
        port: 0 takes any free one.
        listener: accepts from this one instead.

    Raises:
        SettingsError: the address cannot be used; says what to do.
    """
    runner = await _runner(opening, ingress)
    if listener is not None:
        accept_by_turns(opening, runner, listener)
        return url_of(*listener.getsockname()[:2])
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    return url_of(*runner.addresses[0][:2])


def accept_by_turns(
    opening: AsyncExitStack, runner: web.ServerRunner, listener: socket.socket
) -> None:
    """Serve from a shared listener until the stack is closed.

    Raises:
        RuntimeError: the runner is not set up.
    """
    if runner.server is None:
        raise RuntimeError("The runner of the server is not set up.")
    acceptor = Acceptor(runner.server, listener)
    acceptor.start()
    opening.push_async_callback(acceptor.stop)


async def serve_privately(opening: AsyncExitStack, ingress: Ingress, path: str) -> None:
    """Serve on a Unix socket, for the other processes of this bot."""
    await web.UnixSite(await _runner(opening, ingress), path).start()


def url_of(host: str, port: int) -> str:
    """Return the URL at which Slack reaches an address."""
    # IPv6 needs brackets in a URL (RFC 3986, section 3.2.2).
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}{EVENTS_PATH}"


async def _runner(opening: AsyncExitStack, ingress: Ingress) -> web.ServerRunner:
    runner = web.ServerRunner(ingress.server(), shutdown_timeout=_DRAIN_S)
    await runner.setup()
    opening.push_async_callback(runner.cleanup)
    return runner


def _cannot_listen(host: str, port: int, error: OSError) -> SettingsError:
    if error.errno == errno.EADDRINUSE:
        return SettingsError(
            f"Port {port} on {host} is in use; stop what listens there, "
            "or set 'slack.port' (TWOKEY_SLACK_PORT) to another one."
        )
    return SettingsError(
        f"The bot cannot listen on {host}:{port} ({error.strerror}); set 'slack.host' "
        "and 'slack.port' to an address of this machine."
    )
