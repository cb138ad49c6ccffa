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
from traceback import walk_tb
from typing import cast


class ErrorKind(StrEnum):
    """What kept a run from going on.

    Attributes:
        CONNECTION: a service cannot be reached.
        OVERLOAD: a service answers with a server error (5xx).
        RATE_LIMIT: a service limits our requests (429).
        TIMEOUT: a service did not answer in time.
        DATABASE: the agent's database does not answer.
        MACHINE: memory, disk or file descriptors of this machine ran out.
        STORE: the gateway's Redis does not answer.
        STATE: the business state that a call depends on cannot be read.
        UNSERVED: no running process serves the agent.
        UNKNOWN: no rule knows the error; it is retried for a while.
        REFUSED: a service refused the request itself, such as its key or its form.
        CODE: the agent's own code failed.
        LIMIT: the graph reached a limit, such as its recursion limit.
        BREAKPOINT: the graph stands at a breakpoint.
        GRAPH: the graph cannot be built or cannot go on.
    """

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


def kind_of_error(error: BaseException) -> ErrorKind | None:
    """Return what an error is known as, without its causes; None when it is not."""
    return (
        # The most specific first: LangChain has read the provider's answer, a status
        # says more than the client's class, and a builtin base class says least.
        _by_model_error(error)
        or _by_status(error)
        or _by_grpc(error)
        or _by_library(error)
        or _by_reader(error)
        or _by_builtin(error)
    )


def _by_model_error(error: BaseException) -> ErrorKind | None:
    """Return what LangChain says of a provider's error (langchain-core >= 1.5)."""
    is_retryable = attribute(error, "is_retryable")
    if ("langchain_core", "ModelError") not in _names(error):
        return None
    if not is_retryable:
        return ErrorKind.REFUSED
    for name, kind in _MODEL_ERRORS.items():
        if ("langchain_core", name) in _names(error):
            return kind
    return ErrorKind.OVERLOAD


_MODEL_ERRORS = {
    "ModelRateLimitError": ErrorKind.RATE_LIMIT,
    "ModelConnectionError": ErrorKind.CONNECTION,
    "ModelTimeoutError": ErrorKind.TIMEOUT,
}

_FIRST_ERROR, _FIRST_SERVER_ERROR, _LAST_STATUS = 400, 500, 599
_STATUSES = {
    408: ErrorKind.TIMEOUT,
    409: ErrorKind.OVERLOAD,  # a lock at the provider; its own clients retry it, too
    425: ErrorKind.OVERLOAD,
    429: ErrorKind.RATE_LIMIT,
    501: ErrorKind.REFUSED,
    504: ErrorKind.TIMEOUT,
    505: ErrorKind.REFUSED,
}


def _by_status(error: BaseException) -> ErrorKind | None:
    status = status_of(error)
    if not status:
        return None
    is_server = status >= _FIRST_SERVER_ERROR
    return _STATUSES.get(status, ErrorKind.OVERLOAD if is_server else ErrorKind.REFUSED)


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error, as the common clients carry it; else 0."""
    response = attribute(error, "response")
    # Only integers count: `code` is a method in gRPC and a text in other clients.
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
    "UNAVAILABLE": ErrorKind.CONNECTION,
    "DEADLINE_EXCEEDED": ErrorKind.TIMEOUT,
    "RESOURCE_EXHAUSTED": ErrorKind.RATE_LIMIT,
    "ABORTED": ErrorKind.OVERLOAD,
    "INTERNAL": ErrorKind.OVERLOAD,
    "UNKNOWN": ErrorKind.UNKNOWN,
}


def _by_grpc(error: BaseException) -> ErrorKind | None:
    if "grpc" not in {root for root, _ in _names(error)}:
        return None
    code = attribute(error, "code")
    try:
        found: object = code() if callable(code) else code
    except Exception:  # noqa: BLE001 - foreign code; then it is not known
        return None
    name = attribute(found, "name")
    return _GRPC.get(name, ErrorKind.REFUSED) if isinstance(name, str) else None


_LIBRARIES: Mapping[tuple[str, str], ErrorKind] = {
    # OpenAI, Anthropic and other SDKs of the same generator.
    ("*", "APITimeoutError"): ErrorKind.TIMEOUT,
    ("*", "APIConnectionError"): ErrorKind.CONNECTION,
    ("anthropic", "OverloadedError"): ErrorKind.OVERLOAD,
    ("anthropic", "RetryableError"): ErrorKind.OVERLOAD,
    ("httpx", "UnsupportedProtocol"): ErrorKind.CODE,
    ("httpx", "LocalProtocolError"): ErrorKind.CODE,
    ("httpx", "TimeoutException"): ErrorKind.TIMEOUT,
    ("httpx", "TransportError"): ErrorKind.CONNECTION,
    ("httpcore", "TimeoutException"): ErrorKind.TIMEOUT,
    ("httpcore", "NetworkError"): ErrorKind.CONNECTION,
    ("httpcore", "RemoteProtocolError"): ErrorKind.CONNECTION,
    ("httpcore", "ProxyError"): ErrorKind.CONNECTION,
    ("aiohttp", "ClientConnectorCertificateError"): ErrorKind.REFUSED,
    ("aiohttp", "ServerFingerprintMismatch"): ErrorKind.REFUSED,
    ("aiohttp", "ServerTimeoutError"): ErrorKind.TIMEOUT,
    ("aiohttp", "ClientConnectionError"): ErrorKind.CONNECTION,
    ("aiohttp", "ClientPayloadError"): ErrorKind.CONNECTION,
    ("requests", "SSLError"): ErrorKind.REFUSED,
    ("requests", "Timeout"): ErrorKind.TIMEOUT,
    ("requests", "ConnectionError"): ErrorKind.CONNECTION,
    ("requests", "ChunkedEncodingError"): ErrorKind.CONNECTION,
    ("urllib3", "SSLError"): ErrorKind.REFUSED,
    ("urllib3", "TimeoutError"): ErrorKind.TIMEOUT,
    ("urllib3", "ProtocolError"): ErrorKind.CONNECTION,
    ("urllib3", "MaxRetryError"): ErrorKind.CONNECTION,
    ("urllib3", "ProxyError"): ErrorKind.CONNECTION,
    ("google", "TransportError"): ErrorKind.CONNECTION,
    ("google", "TimeoutError"): ErrorKind.TIMEOUT,
    ("botocore", "ReadTimeoutError"): ErrorKind.TIMEOUT,
    ("botocore", "ConnectionError"): ErrorKind.CONNECTION,
    ("botocore", "HTTPClientError"): ErrorKind.CONNECTION,
    ("websockets", "ConnectionClosed"): ErrorKind.CONNECTION,
    ("anyio", "BrokenResourceError"): ErrorKind.CONNECTION,
    ("anyio", "EndOfStream"): ErrorKind.CONNECTION,
    ("psycopg", "OperationalError"): ErrorKind.DATABASE,
    ("psycopg", "InterfaceError"): ErrorKind.DATABASE,
    ("psycopg", "ProgrammingError"): ErrorKind.CODE,
    ("asyncpg", "PostgresConnectionError"): ErrorKind.DATABASE,
    ("asyncpg", "OperatorInterventionError"): ErrorKind.DATABASE,
    ("asyncpg", "InsufficientResourcesError"): ErrorKind.DATABASE,
    ("asyncpg", "InterfaceError"): ErrorKind.DATABASE,
    ("redis", "AuthenticationError"): ErrorKind.REFUSED,
    ("redis", "ConnectionError"): ErrorKind.DATABASE,
    ("redis", "TimeoutError"): ErrorKind.DATABASE,
    ("redis", "ReadOnlyError"): ErrorKind.DATABASE,
    ("redis", "TryAgainError"): ErrorKind.DATABASE,
    ("redis", "ClusterDownError"): ErrorKind.DATABASE,
    ("pymongo", "AutoReconnect"): ErrorKind.DATABASE,
    ("pymongo", "ServerSelectionTimeoutError"): ErrorKind.DATABASE,
    ("sqlite3", "ProgrammingError"): ErrorKind.CODE,
    ("langgraph", "NodeTimeoutError"): ErrorKind.TIMEOUT,
    ("langgraph", "InvalidUpdateError"): ErrorKind.CODE,
    ("langgraph", "EmptyInputError"): ErrorKind.CODE,
    ("langgraph", "EmptyChannelError"): ErrorKind.CODE,
}
"""First part of the module ("*": any) and class; the most derived class counts."""


_SQLITE: Mapping[object, ErrorKind] = {
    "SQLITE_ERROR": ErrorKind.CODE,  # wrong SQL
    "SQLITE_FULL": ErrorKind.MACHINE,
}
"""The codes of SQLite that stand for neither a lock nor a disk that fails."""


def _by_library(error: BaseException) -> ErrorKind | None:
    for root, name in _names(error):
        if (root, name) == ("sqlite3", "OperationalError"):
            code = attribute(error, "sqlite_errorname")
            return _SQLITE.get(code, ErrorKind.DATABASE)
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


_READERS = frozenset(
    {
        "generate_from_stream",
        "agenerate_from_stream",
        "_create_chat_result",  # OpenAI's wire format
        "_format_output",  # Anthropic's
    }
)
"""Functions in which LangChain reads what a provider answered."""


def _by_reader(error: BaseException) -> ErrorKind | None:
    """Return what an answer is that LangChain cannot read; None for other errors.

    An empty stream, the page of a proxy and arguments that are no object raise the same
    classes as a bug; asked again, the model may answer better.
    """
    for frame, _ in walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name in _READERS and module.startswith("langchain_"):
            return ErrorKind.UNKNOWN
    return None


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


def _by_builtin(error: BaseException) -> ErrorKind | None:
    found: ErrorKind | None = None
    if isinstance(error, ssl.SSLCertVerificationError):
        found = ErrorKind.REFUSED
    elif isinstance(error, _BUGS):
        # Before OSError: a missing file or a permission does not come back by waiting.
        found = ErrorKind.CODE
    elif isinstance(error, TimeoutError):
        found = ErrorKind.TIMEOUT
    elif isinstance(error, ConnectionError | socket.gaierror | ssl.SSLError):
        found = ErrorKind.CONNECTION
    elif isinstance(error, EOFError) and hasattr(error, "partial"):
        found = ErrorKind.CONNECTION  # asyncio.IncompleteReadError
    elif isinstance(error, MemoryError):
        found = ErrorKind.MACHINE
    elif isinstance(error, OSError) and error.errno in _NETWORK:
        found = ErrorKind.CONNECTION
    elif isinstance(error, OSError) and error.errno in _SHORT:
        found = ErrorKind.MACHINE
    return found


def attribute(thing: object, name: str) -> object:
    """Return an attribute of a foreign object; None when reading it fails."""
    try:
        return cast("object", getattr(thing, name, None))
    except Exception:  # noqa: BLE001 - a property of a foreign class may raise
        return None
