"""Wait for a store that is away for a while, as in a failover, before a start gives up.

A start that gave up at once would be repeated by whatever supervises the process, and
with each attempt later, until long after the store is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
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
