"""Wait for a store that is loading its data or temporarily away.

If a start failed at once, the supervisor of the process would restart it with growing
delays, and it would stay down long after the store is back. A failover takes half a
minute. A server that loads its data, which can take minutes, rejects nearly every
command (``LOADING``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import (
    NotConfirmed,
    StoreUnavailable,
    Unanswered,
    UnsafeStore,
)
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.connection.durability import server_info
from keyturn.gateway.store.connection.servers import UntrustedCertificateError

logger = logging.getLogger(__name__)

USABLE_WITHIN_S = 120.0
"""Time limit of a start: Sentinels with default settings need half a minute to detect
a lost master."""

ANSWERED_WITHIN_S = 3.0
"""Time limit of a health check for the store: probes wait little longer."""

_SAY_EVERY_S = 5.0
_LOOK_S = 0.5

Found = TypeVar("Found")

LOADED_WITHIN_S = 3600.0
"""Time limit for loading data during a start."""


@asynccontextmanager
async def in_time() -> AsyncGenerator[None]:
    """Raise `StoreUnavailable` if the block takes too long for a health check."""
    try:
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            yield
    except TimeoutError as error:
        raise StoreUnavailable("The store does not answer.") from error


async def until_usable(step: Callable[[], Awaitable[Found]], url: str) -> Found:
    """Repeat a step of a start until the store answers; log the reason at times.

    Args:
        step: raises an error if the store is not ready; must be repeatable.
        url: the store's URL; the log shows its servers without the password.

    Returns:
        The result of the step.

    Raises:
        UnsafeStore: the problem is not temporary, or lasted too long.
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
    """Return a URL for the log, without user name or password."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or parts.path


def can_pass(error: StoreUnavailable | UnsafeStore) -> bool:
    """Return whether the error may be caused by a failover or a starting server."""
    if isinstance(error, UnsafeStore):
        return error.can_pass
    cause = error.__cause__
    if isinstance(cause, AuthenticationError | UntrustedCertificateError):
        return False
    # A master rejects writes until its replicas have reported their progress.
    return (
        isinstance(cause, RedisConnectionError | RedisTimeoutError | OSError)
        or isinstance(error, NotConfirmed | Unanswered)
        or str(cause).startswith("NOREPLICAS")
    )


def is_loading(info: Mapping[str, str]) -> bool:
    """Return whether a server loads its data, according to its INFO."""
    return info.get("loading", "0") not in {"0", ""}


class Loading:
    """A wait for a server that loads its data; ``where`` is its address for the log."""

    def __init__(self, where: str) -> None:
        self._where, self._began, self._said = where, now_s(), -_SAY_EVERY_S

    def goes_on(self, info: Mapping[str, str]) -> None:
        """Log the progress in the server's INFO from time to time.

        Raises:
            StoreUnavailable: when it has loaded for too long.
        """
        waited_s = now_s() - self._began
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
    """Wait until a server has loaded its data.

    Raises:
        StoreUnavailable: when it does not answer, or loads for too long.
    """
    loading = Loading(where)
    # INFO, since PING is rejected during loading.
    while is_loading(info := await server_info(conn)):
        loading.goes_on(info)
        await asyncio.sleep(_LOOK_S)
