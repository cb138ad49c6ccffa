"""Recognize errors by class, HTTP status or gRPC code.

No library is imported for it: a class is known by its name and the first part of its
module, so that an agent may use any of them.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Mapping
from enum import StrEnum
from typing import cast


class Trouble(StrEnum):
    """What kept a run from going on."""

    CONNECTION = "connection"
    OVERLOAD = "overload"
    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    DATABASE = "database"
    MACHINE = "machine"
    STORE = "store"
    STATE = "state"
    UNSERVED = "unserved"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    CODE = "code"
    LIMIT = "limit"
    BREAKPOINT = "breakpoint"
    GRAPH = "graph"


def trouble_of(error: BaseException) -> Trouble | None:
    """Return what an error is known as, without its causes; None when it is not."""
    return (
        _by_model_error(error)
        or _by_status(error)
        or _by_grpc(error)
        or _by_library(error)
        or _by_builtin(error)
    )


def _by_model_error(error: BaseException) -> Trouble | None:
    """Return what LangChain says of a provider's error (langchain-core >= 1.5)."""
    is_retryable = attribute(error, "is_retryable")
    if ("langchain_core", "ModelError") not in _names(error):
        return None
    if not is_retryable:
        return Trouble.REFUSED
    for name, trouble in _MODEL_ERRORS.items():
        if ("langchain_core", name) in _names(error):
            return trouble
    return Trouble.OVERLOAD


_MODEL_ERRORS = {
    "ModelRateLimitError": Trouble.RATE_LIMIT,
    "ModelConnectionError": Trouble.CONNECTION,
    "ModelTimeoutError": Trouble.TIMEOUT,
}

_FIRST_ERROR, _FIRST_SERVER_ERROR, _LAST_STATUS = 400, 500, 599
_STATUSES = {
    408: Trouble.TIMEOUT,
    409: Trouble.OVERLOAD,  # a lock at the provider; its own clients retry it, too
    425: Trouble.OVERLOAD,
    429: Trouble.RATE_LIMIT,
    501: Trouble.REFUSED,
    504: Trouble.TIMEOUT,
    505: Trouble.REFUSED,
}


def _by_status(error: BaseException) -> Trouble | None:
    status = status_of(error)
    if not status:
        return None
    is_server = status >= _FIRST_SERVER_ERROR
    return _STATUSES.get(status, Trouble.OVERLOAD if is_server else Trouble.REFUSED)


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error, as the common clients carry it; else 0."""
    response = attribute(error, "response")
    places = [attribute(error, name) for name in ("status_code", "status", "code")]
    places += [attribute(response, name) for name in ("status_code", "status")]
    if isinstance(response, Mapping):  # botocore
        about = cast("Mapping[str, object]", response).get("ResponseMetadata")
        if isinstance(about, Mapping):
            places.append(cast("Mapping[str, object]", about).get("HTTPStatusCode"))
    for value in places:
        if isinstance(value, int) and _FIRST_ERROR <= value <= _LAST_STATUS:
            return int(value)
    return 0


_GRPC = {
    "UNAVAILABLE": Trouble.CONNECTION,
    "DEADLINE_EXCEEDED": Trouble.TIMEOUT,
    "RESOURCE_EXHAUSTED": Trouble.RATE_LIMIT,
    "ABORTED": Trouble.OVERLOAD,
    "INTERNAL": Trouble.OVERLOAD,
    "UNKNOWN": Trouble.UNKNOWN,
}


def _by_grpc(error: BaseException) -> Trouble | None:
    if "grpc" not in {root for root, _ in _names(error)}:
        return None
    code = attribute(error, "code")
    try:
        found: object = code() if callable(code) else code
    except Exception:  # noqa: BLE001 - foreign code; then it is not known
        return None
    name = attribute(found, "name")
    return _GRPC.get(name, Trouble.REFUSED) if isinstance(name, str) else None


_LIBRARIES: Mapping[tuple[str, str], Trouble] = {
    # OpenAI, Anthropic and other SDKs of the same generator.
    ("*", "APITimeoutError"): Trouble.TIMEOUT,
    ("*", "APIConnectionError"): Trouble.CONNECTION,
    ("anthropic", "OverloadedError"): Trouble.OVERLOAD,
    ("anthropic", "RetryableError"): Trouble.OVERLOAD,
    ("httpx", "UnsupportedProtocol"): Trouble.CODE,
    ("httpx", "LocalProtocolError"): Trouble.CODE,
    ("httpx", "TimeoutException"): Trouble.TIMEOUT,
    ("httpx", "TransportError"): Trouble.CONNECTION,
    ("httpcore", "TimeoutException"): Trouble.TIMEOUT,
    ("httpcore", "NetworkError"): Trouble.CONNECTION,
    ("httpcore", "RemoteProtocolError"): Trouble.CONNECTION,
    ("httpcore", "ProxyError"): Trouble.CONNECTION,
    ("aiohttp", "ClientConnectorCertificateError"): Trouble.REFUSED,
    ("aiohttp", "ServerFingerprintMismatch"): Trouble.REFUSED,
    ("aiohttp", "ServerTimeoutError"): Trouble.TIMEOUT,
    ("aiohttp", "ClientConnectionError"): Trouble.CONNECTION,
    ("aiohttp", "ClientPayloadError"): Trouble.CONNECTION,
    ("requests", "SSLError"): Trouble.REFUSED,
    ("requests", "Timeout"): Trouble.TIMEOUT,
    ("requests", "ConnectionError"): Trouble.CONNECTION,
    ("requests", "ChunkedEncodingError"): Trouble.CONNECTION,
    ("urllib3", "SSLError"): Trouble.REFUSED,
    ("urllib3", "TimeoutError"): Trouble.TIMEOUT,
    ("urllib3", "ProtocolError"): Trouble.CONNECTION,
    ("urllib3", "MaxRetryError"): Trouble.CONNECTION,
    ("urllib3", "ProxyError"): Trouble.CONNECTION,
    ("google", "TransportError"): Trouble.CONNECTION,
    ("google", "TimeoutError"): Trouble.TIMEOUT,
    ("botocore", "ReadTimeoutError"): Trouble.TIMEOUT,
    ("botocore", "ConnectionError"): Trouble.CONNECTION,
    ("botocore", "HTTPClientError"): Trouble.CONNECTION,
    ("websockets", "ConnectionClosed"): Trouble.CONNECTION,
    ("anyio", "BrokenResourceError"): Trouble.CONNECTION,
    ("anyio", "EndOfStream"): Trouble.CONNECTION,
    ("psycopg", "OperationalError"): Trouble.DATABASE,
    ("psycopg", "InterfaceError"): Trouble.DATABASE,
    ("psycopg", "ProgrammingError"): Trouble.CODE,
    ("asyncpg", "PostgresConnectionError"): Trouble.DATABASE,
    ("asyncpg", "OperatorInterventionError"): Trouble.DATABASE,
    ("asyncpg", "InsufficientResourcesError"): Trouble.DATABASE,
    ("asyncpg", "InterfaceError"): Trouble.DATABASE,
    ("redis", "AuthenticationError"): Trouble.REFUSED,
    ("redis", "ConnectionError"): Trouble.DATABASE,
    ("redis", "TimeoutError"): Trouble.DATABASE,
    ("redis", "ReadOnlyError"): Trouble.DATABASE,
    ("redis", "TryAgainError"): Trouble.DATABASE,
    ("redis", "ClusterDownError"): Trouble.DATABASE,
    ("pymongo", "AutoReconnect"): Trouble.DATABASE,
    ("pymongo", "ServerSelectionTimeoutError"): Trouble.DATABASE,
    ("sqlite3", "ProgrammingError"): Trouble.CODE,
    ("langgraph", "NodeTimeoutError"): Trouble.TIMEOUT,
    ("langgraph", "InvalidUpdateError"): Trouble.CODE,
    ("langgraph", "EmptyInputError"): Trouble.CODE,
    ("langgraph", "EmptyChannelError"): Trouble.CODE,
}
"""First part of the module ("*": any) and class; the most derived class counts."""


def _by_library(error: BaseException) -> Trouble | None:
    for root, name in _names(error):
        if (root, name) == ("sqlite3", "OperationalError"):
            # Its generic code stands for wrong SQL; the others for a lock or the disk.
            is_sql = attribute(error, "sqlite_errorname") == "SQLITE_ERROR"
            return Trouble.CODE if is_sql else Trouble.DATABASE
        found = _LIBRARIES.get((root, name)) or _LIBRARIES.get(("*", name))
        if found is not None:
            return found
    return None


def _names(error: BaseException) -> list[tuple[str, str]]:
    """Return the module's first part and the name of each class, most derived first.

    The second generation of a library ("httpx2") has the classes of the first.
    """
    return [
        (one.__module__.partition(".")[0].rstrip("2"), one.__name__)
        for one in type(error).__mro__
    ]


_NETWORK = frozenset(
    {
        errno.EADDRNOTAVAIL,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOTCONN,
    }
)
_SHORT = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ENOSPC,
    }
)

_BUGS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    FileNotFoundError,
    ImportError,
    IsADirectoryError,
    LookupError,
    NameError,
    NotADirectoryError,
    NotImplementedError,
    PermissionError,
    RecursionError,
    StopAsyncIteration,
    StopIteration,
    SyntaxError,
    TypeError,
    ValueError,  # pydantic's ValidationError, too
)


def _by_builtin(error: BaseException) -> Trouble | None:
    found: Trouble | None = None
    if isinstance(error, ssl.SSLCertVerificationError):
        found = Trouble.REFUSED
    elif isinstance(error, _BUGS):
        found = Trouble.CODE
    elif isinstance(error, TimeoutError):
        found = Trouble.TIMEOUT
    elif isinstance(error, ConnectionError | socket.gaierror | ssl.SSLError):
        found = Trouble.CONNECTION
    elif isinstance(error, EOFError) and hasattr(error, "partial"):
        found = Trouble.CONNECTION  # asyncio.IncompleteReadError
    elif isinstance(error, MemoryError):
        found = Trouble.MACHINE
    elif isinstance(error, OSError) and error.errno in _NETWORK:
        found = Trouble.CONNECTION
    elif isinstance(error, OSError) and error.errno in _SHORT:
        found = Trouble.MACHINE
    return found


def attribute(thing: object, name: str) -> object:
    """Return an attribute of a foreign object; None when reading it fails."""
    try:
        return cast("object", getattr(thing, name, None))
    except Exception:  # noqa: BLE001 - a property of a foreign class may raise
        return None
