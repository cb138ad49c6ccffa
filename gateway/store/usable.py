"""Wait for a store that loads its data, or is away for a while, before giving up.

A start that gave up at once would be repeated by whatever supervises the process, and
with each attempt later, until long after the store is back. A failover takes half a
minute. Until a server has loaded its data, which takes minutes if there is much of it,
it refuses nearly every command (``LOADING``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    MasterDownError,
    ReadOnlyError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import (
    NotConfirmed,
    StoreUnavailable,
    Unanswered,
    UnsafeStore,
)
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.store.durability import server_info
from keyturn.gateway.store.servers import UntrustedCertificateError

logger = logging.getLogger(__name__)

USABLE_WITHIN_S = 120.0
"""How long a start waits: Sentinels with default settings take half a minute to notice
that a master is gone."""

_SAY_EVERY_S = 5.0
_LOOK_S = 0.5

_PASSES = (
    RedisConnectionError,
    RedisTimeoutError,
    OSError,
    ReadOnlyError,
    ClusterDownError,
    MasterDownError,
    TryAgainError,
)
_STAYS = (AuthenticationError, UntrustedCertificateError)

Found = TypeVar("Found")

LOADED_WITHIN_S = 3600.0
"""How long a server may load before a start gives up."""


async def until_usable(step: Callable[[], Awaitable[Found]], url: str) -> Found:
    """Do a step of a start until the store answers; say now and then why it does not.

    Args:
        step: raises what is wrong; it may be done again, whatever of it was done.
        url: of the store; the log names its servers, and no password.

    Returns:
        What the step returns.

    Raises:
        UnsafeStore: what is wrong does not end by itself, or has not in time.
        StoreUnavailable: the same.
    """
    began, said = now_s(), -_SAY_EVERY_S
    while True:
        try:
            return await step()
        except (StoreUnavailable, UnsafeStore) as error:
            waited_s = now_s() - began
            if not can_pass(error) or waited_s >= USABLE_WITHIN_S:
                raise
            if waited_s - said >= _SAY_EVERY_S:
                said = waited_s
                logger.warning(
                    "store.waiting where=%s seconds=%.0f of=%.0f why=%s",
                    shown(url),
                    waited_s,
                    USABLE_WITHIN_S,
                    " ".join(str(error).split()),
                )
            await asyncio.sleep(_LOOK_S)


def shown(url: str) -> str:
    """Return an address for the log, without a user's name or password."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or parts.path


def can_pass(error: StoreUnavailable | UnsafeStore) -> bool:
    """Return whether a failover, or a server that starts, may be why."""
    if isinstance(error, UnsafeStore):
        return error.can_pass
    cause = error.__cause__
    is_passing = isinstance(cause, _PASSES) and not isinstance(cause, _STAYS)
    # A master refuses writes until its replicas have told how far they are.
    is_passing = is_passing or str(cause).startswith("NOREPLICAS")
    return is_passing or isinstance(error, NotConfirmed | Unanswered)


class Loading:
    """One wait for a server.

    Args:
        where: the server, as the log names it; without a password.
        clock: seconds, never going backwards.
    """

    def __init__(
        self, where: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._where = where
        self._clock = clock
        self._began = clock()
        self._said = -_SAY_EVERY_S

    def goes_on(self, info: Mapping[str, str]) -> None:
        """Say now and then how far the server is, by what its INFO says.

        Raises:
            StoreUnavailable: when it has loaded for too long.
        """
        waited_s = self._clock() - self._began
        if waited_s > LOADED_WITHIN_S:
            raise StoreUnavailable(
                f"The store {self._where} still loads its data after "
                f"{waited_s / 60:.0f} minutes; look into its log."
            )
        if waited_s - self._said >= _SAY_EVERY_S:
            self._said = waited_s
            logger.info(
                "store.loading where=%s percent=%s seconds=%.0f left=%s",
                self._where,
                info.get("loading_loaded_perc", "?"),
                waited_s,
                info.get("loading_eta_seconds", "?"),
            )


async def until_loaded(conn: Connection, where: str) -> None:
    """Wait until a server has loaded its data set.

    Raises:
        StoreUnavailable: when it does not answer, or loads for too long.
    """
    loading = Loading(where)
    # INFO and not PING: it is answered while a server loads.
    while (info := await server_info(conn)).get("loading", "0") not in {"0", ""}:
        loading.goes_on(info)
        await asyncio.sleep(_LOOK_S)
