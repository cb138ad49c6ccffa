"""Say what the failure of a store means for those who asked it."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    OutOfMemoryError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from keyturn.gateway.errors import (
    KeptInPart,
    NotConfirmed,
    StoreUnavailable,
    Unanswered,
)
from keyturn.gateway.store.confirming import LostWriteError, NotConfirmedError
from keyturn.gateway.store.servers import (
    MaybeDoneError,
    NotMasterError,
    UntrustedCertificateError,
)

HINT = "check that Redis runs and that KEYTURN_REDIS_URL names it, then try again."
EMBEDDED_HINT = (
    "the embedded Valkey is started again by itself; try again, and see 'valkey.log' "
    "in the data folder if it does not come back."
)

_WRITABLE_HINT = "check that Redis is writable, then try again."
_HINTS: dict[type[Exception], str] = {
    AuthenticationError: "put the user and the password that it wants into "
    "KEYTURN_REDIS_URL, and start this again.",
    OutOfMemoryError: "its memory is full: raise 'maxmemory', or make room.",
    NotMasterError: "if it stays a replica, set KEYTURN_REDIS_URL to its master.",
    UntrustedCertificateError: "its certificate is not trusted here: renew one that "
    "has expired, use the host name that it was made for, and name the authority of "
    "your own that signed it (…?ssl_ca_certs=/path/ca.pem in KEYTURN_REDIS_URL).",
    NoPermissionError: "let its user do this (ACL SETUSER), then try again.",
}
_BEGINNINGS = {
    "MISCONF": "it cannot write its snapshot: make room on its disk, see its log, then "
    "run BGSAVE.",
    "DB index": "name a database that it has, such as /0, in KEYTURN_REDIS_URL.",
}
"""Hints about errors that have no class, by how they begin."""
# How a server marks an error that ended a script at one of its lines. No class tells
# it from one that kept the script from beginning.
_IN_A_SCRIPT = "@user_script:"


def refuses(error: StoreUnavailable) -> bool:
    """Return whether the store answered, and did not do what it was asked."""
    return isinstance(error.__cause__, ResponseError)


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
    is_away = isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)
    if is_away and not isinstance(error, NotMasterError):
        hint = _HINTS.get(type(error), hint)
        return StoreUnavailable(
            f"The store does not answer ({kind}: {error}). Nothing was recorded; {hint}"
        )
    if writes and _IN_A_SCRIPT in str(error):
        return KeptInPart(f"{kind}: {error}")
    hint = _HINTS.get(type(error), _WRITABLE_HINT)
    for beginning, other in _BEGINNINGS.items():
        if str(error).startswith(beginning):
            hint = other
    return StoreUnavailable(
        f"The store did not keep this ({kind}: {error}). Nothing was acknowledged; "
        f"{hint}"
    )
