"""Say which part of the bot a process runs, and ask the process that publishes.

`twokey bot --workers` runs several processes that answer Slack on one port, and one
that publishes. Whoever asks a worker for health or metrics gets those of the publisher
as well: counters begin with a process, so only one process may count.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import cast

import aiohttp

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.garbage_collection import spare_what_is_there

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_LESS_URGENT = 5
"""By how much the priority of a process that only publishes is lowered: beside workers
on busy processors it still gets a quarter of what one of them gets."""

_NEW_OBJECTS = 20_000
"""How many objects Python makes before it looks for unreachable ones. By default it
looks after 700, some dozen times in a second of clicks, which leave next to nothing."""

_AWAY = "The process that publishes cards does not answer."


class Part(StrEnum):
    """What of the bot a process runs."""

    WHOLE = "whole"
    ANSWERS = "answers"
    PUBLISHES = "publishes"


@dataclass(frozen=True, slots=True)
class Worker:
    """One process of a bot.

    Attributes:
        part: what it runs.
        listener: the socket that all processes that answer accept from; None opens
            one of its own.
        health: path of the Unix socket on which the publisher tells of itself.
    """

    part: Part = Part.WHOLE
    listener: socket.socket | None = None
    health: str = ""

    @property
    def publishes(self) -> bool:
        """Return whether cards are published here, or may be."""
        return self.part is not Part.ANSWERS

    @property
    def answers(self) -> bool:
        """Return whether Slack is answered here."""
        return self.part is not Part.PUBLISHES


WHOLE = Worker()
"""A bot in one process."""


def prepare_process(worker: Worker) -> None:
    """Make this process ready to run its part of a bot; for who owns the process.

    Who answers goes before who publishes, since Slack waits for an answer. What was
    imported is never looked through for unreachable objects.
    """
    spare_what_is_there(_NEW_OBJECTS)
    if not worker.answers:
        os.nice(_LESS_URGENT)


class PublisherHealth:
    """What the publishing process tells of itself.

    Args:
        path: of its Unix socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    async def problems(self) -> list[str]:
        """Return what keeps it from working."""
        try:
            _, body = await self._get("/readyz")
            found = cast("dict[str, object]", json.loads(body))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return [_AWAY]
        return [str(one) for one in cast("list[object]", found.get("problems", []))]

    async def metrics(self) -> bytes:
        """Return its metrics.

        Raises:
            StoreUnavailable: it has none now.
        """
        try:
            status, body = await self._get("/metrics")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise StoreUnavailable(_AWAY) from error
        if status != HTTPStatus.OK:
            raise StoreUnavailable(_AWAY)
        return body

    async def _get(self, path: str) -> tuple[int, bytes]:
        # A connection for each look: the publisher may be another process by then.
        connector = aiohttp.UnixConnector(path=self._path)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session,
            session.get(f"http://publisher{path}") as answer,
        ):
            return answer.status, await answer.read()
