"""Say what the failure of a store means for those who asked it."""

from __future__ import annotations

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from twokey.gateway.errors import NotConfirmed, StoreUnavailable, Unanswered
from twokey.gateway.store.confirming import LostWriteError, NotConfirmedError
from twokey.gateway.store.multiplexed import MaybeDoneError

HINT = "check that Redis runs and that TWOKEY_REDIS_URL names it, then try again."
EMBEDDED_HINT = (
    "the embedded Valkey is started again by itself; try again, and see 'valkey.log' "
    "in the data folder if it does not come back."
)


def unavailable(error: Exception, hint: str, *, writes: bool) -> StoreUnavailable:
    """Return our error for one of the client's.

    Args:
        error: of the client.
        hint: what an operator may do.
        writes: it was asked to keep something.
    """
    if isinstance(error, NotConfirmedError | LostWriteError):
        return NotConfirmed()
    kind = type(error).__name__
    if writes and isinstance(error, MaybeDoneError):
        return Unanswered(f"{kind}: {error}", hint)
    # Two classes of the name ConnectionError: Python's, and redis-py's, which is no
    # OSError.
    if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError):
        return StoreUnavailable(
            f"The store does not answer ({kind}: {error}). Nothing was recorded; {hint}"
        )
    return StoreUnavailable(
        f"The store did not keep this ({kind}: {error}). Nothing was acknowledged; "
        "check that Redis is writable, then try again."
    )
