"""Ports of this machine for servers that tests start, stop and start again."""

from __future__ import annotations

import socket
import sys

_kept: list[socket.socket] = []


def free_port() -> int:
    """Reserve a port without a listener until this process ends; return it.

    A port that is only looked up can go to any other process before the server has
    started, or while it is down. A socket that is bound and does not listen keeps the
    kernel from choosing its port for others, and connections to it are refused. A
    server can still bind the port by its number if it sets ``SO_REUSEADDR``, as all of
    ours do. Only Linux allows that, so elsewhere the port is only looked up.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port = int(kept.getsockname()[1])
    if sys.platform == "linux":
        _kept.append(kept)
    else:
        kept.close()
    return port
