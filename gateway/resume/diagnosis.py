"""Diagnose a failed run's error: transient, permanent or unknown.

Transient errors are retried for a long time, permanent errors park the run at once, and
unknown errors are retried for a short time: a library may wrap an overloaded provider
in any exception, and user code may raise anything. An error is classified by its class,
by its HTTP status or gRPC code, and else by its cause. The text of an error is neither
read nor shown, because it may quote arguments.

No library is imported for the classification, so an agent may use any of them. A limit
starts again from zero in the next attempt: a retry would spend the whole limit on model
calls and tools again.
"""

from __future__ import annotations

import errno
import math
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from traceback import walk_tb
from typing import cast

from langchain.agents.middleware.model_call_limit import ModelCallLimitExceededError
from langchain.agents.middleware.tool_call_limit import ToolCallLimitExceededError
from langgraph.errors import GraphRecursionError

from keyturn.gateway.errors import (
    BotKeyUnknown,
    GraphError,
    KeyturnError,
    StateUnknown,
    StoreUnavailable,
)


class ThreadHalted(GraphError):
    """A stopped thread that only the program that runs it may continue.

    Attributes:
        is_announced: the thread was halted before, and its stop was announced then.
    """

    def __init__(self, problem: str, *, is_announced: bool = False) -> None:
        self.is_announced = is_announced
        super().__init__(problem)


class AtBreakpoint(ThreadHalted):
    """A graph inside the thread's graph stopped at a static breakpoint."""


def at_breakpoint(thread: str, *, is_announced: bool) -> AtBreakpoint:
    """Return the error for a thread that stopped at a breakpoint."""
    return AtBreakpoint(
        f"The thread {thread!r} stands at a breakpoint (interrupt_before or "
        "interrupt_after) of a graph inside its graph, and is not run through it. Go "
        "on with the graph's own ainvoke(None, config), or take the breakpoint out "
        "and put the tools behind ApprovalMiddleware.",
        is_announced=is_announced,
    )


def at_limit(thread: str, limit: str) -> ThreadHalted:
    """Return the error for a thread that an earlier limit stopped."""
    return ThreadHalted(
        f"The thread {thread!r} was stopped by {limit} and is not tried again by "
        "itself; give it a new message, or run it again with a higher limit.",
        is_announced=True,
    )


CALL_LIMITS = (ModelCallLimitExceededError, ToolCallLimitExceededError)
"""Limits of LangChain's middleware. The middleware runs before the tools, so calls that
were submitted earlier in the step cannot run.
"""

_LIMITS = (GraphRecursionError, *CALL_LIMITS)
_FINAL = (*_LIMITS, ThreadHalted)


def is_limit(error: BaseException) -> bool:
    """Return True if a limit of LangGraph or LangChain ended the step."""
    return isinstance(error, _LIMITS)


def is_final(error: BaseException) -> bool:
    """Return True if every attempt at the same step ends in the same error."""
    return isinstance(error, _FINAL)


class ErrorKind(StrEnum):
    """Reason why a run cannot continue.

    Attributes:
        CONNECTION: a service cannot be reached.
        OVERLOAD: a service answers with a server error (5xx).
        RATE_LIMIT: a service limits its requests (429).
        TIMEOUT: a service did not answer in time.
        DATABASE: the agent's database does not answer.
        MACHINE: memory, disk or file descriptors of this machine ran out.
        STORE: the gateway's Redis does not answer.
        STATE: the business state that a call depends on cannot be read.
        UNSERVED: no running process serves the agent.
        UNKNOWN: no rule covers the error; it is retried for a while.
        REFUSED: a service refused the request itself, such as its key or its form.
        CODE: the agent's own code failed.
        LIMIT: the graph reached a limit, such as its recursion limit.
        BREAKPOINT: the graph stopped at a breakpoint.
        GRAPH: the graph cannot be built or cannot continue.
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
    """Return the kind of an error itself, without its causes; None if unknown."""
    return (
        # The most specific first: LangChain has read the provider's answer, a status is
        # more precise than the client's class, and a builtin base class is the vaguest.
        _by_model_error(error)
        or _by_status(error)
        or _by_grpc(error)
        or _by_library(error)
        or _by_reader(error)
        or _by_builtin(error)
    )


def _by_model_error(error: BaseException) -> ErrorKind | None:
    """Return the kind of LangChain's model errors (langchain-core >= 1.5)."""
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
    """Return the HTTP status in an error of a common client; else 0."""
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
    except Exception:  # noqa: BLE001 - foreign code may raise
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
"""SQLite's codes for anything other than a lock or a failing disk."""


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
    """Return each class's top-level package and name, most derived class first.

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
"""Functions in which LangChain parses a provider's answer."""


def _by_reader(error: BaseException) -> ErrorKind | None:
    """Return UNKNOWN for an answer that LangChain cannot parse; None for other errors.

    An empty stream, a proxy's error page and arguments other than an object raise the
    same classes as a bug; the model's next answer may be better.
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
        # Before OSError: waiting does not restore a missing file or a permission.
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


LONGEST_S = 3600.0
"""Longest wait, also if a service asks for a longer one."""


def retry_after_s(error: BaseException) -> float:
    """Return the seconds that an HTTP error's ``Retry-After`` asks for; 0 for none.

    The headers are read from the error's response, then from the error. Some model
    providers also send ``retry-after-ms``, which takes precedence.
    """
    for owner in (attribute(error, "response"), error):
        headers = attribute(owner, "headers")
        milliseconds = _seconds(_header(headers, "retry-after-ms"))
        seconds = _header(headers, "retry-after")
        found = milliseconds / 1000 or _seconds(seconds) or _until(seconds, headers)
        if found:
            return min(found, LONGEST_S)
    return 0.0


def _header(headers: object, name: str) -> str:
    try:
        found: object = cast("dict[str, object]", headers).get(name)
    except Exception:  # noqa: BLE001 - no headers, or foreign ones
        return ""
    return found if isinstance(found, str) else ""


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return 0.0
    # float() also takes "nan" and "inf".
    return found if math.isfinite(found) and found > 0 else 0.0


def _until(text: str, headers: object) -> float:
    """Return the seconds until an HTTP date, by the clock of the answering server."""
    at, now = _date(text), _date(_header(headers, "date"))
    if at is None or now is None:
        return 0.0
    return max(0.0, (at - now).total_seconds())


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    # Python parses the zone "-0000", which is also UTC, as a date without a zone.
    return found if found.tzinfo else found.replace(tzinfo=UTC)


CAN_PASS = frozenset(
    {
        ErrorKind.CONNECTION,
        ErrorKind.OVERLOAD,
        ErrorKind.RATE_LIMIT,
        ErrorKind.TIMEOUT,
        ErrorKind.DATABASE,
        ErrorKind.MACHINE,
        ErrorKind.STORE,
        ErrorKind.STATE,
        ErrorKind.UNSERVED,
    }
)

_SENTENCES: Mapping[ErrorKind, str] = {
    ErrorKind.CONNECTION: "A service that the agent needs cannot be reached ({name}).",
    ErrorKind.OVERLOAD: (
        "A service that the agent needs is overloaded or fails ({name})."
    ),
    ErrorKind.RATE_LIMIT: (
        "A service that the agent needs limits its requests ({name})."
    ),
    ErrorKind.TIMEOUT: (
        "A service that the agent needs did not answer in time ({name})."
    ),
    ErrorKind.DATABASE: "A database that the agent needs does not answer ({name}).",
    ErrorKind.MACHINE: "The agent's machine has too little of something left ({name}).",
    ErrorKind.STORE: "The store of the gateway does not answer.",
    ErrorKind.STATE: "The business state that a call depends on cannot be read.",
    ErrorKind.UNSERVED: "No process runs the agent for this thread at the moment.",
    ErrorKind.UNKNOWN: "The agent failed with an error that may pass ({name}).",
    ErrorKind.REFUSED: "A service that the agent needs refused its request ({name}).",
    ErrorKind.CODE: "The agent's code failed ({name}).",
    ErrorKind.LIMIT: "The run reached a limit of its graph ({name}).",
    ErrorKind.GRAPH: "The agent's graph cannot be used ({name}).",
}


@dataclass(frozen=True)
class Diagnosis:
    """Classification of an error.

    Attributes:
        kind: its kind.
        reason: one sentence: fixed, or the text of a Keyturn error; never the text of
            another error.
        retry_after_s: wait that the refusing service asked for; 0 for none.
    """

    kind: ErrorKind
    reason: str
    retry_after_s: float = 0.0

    @property
    def can_pass(self) -> bool:
        """Return True if the same step may succeed later without any change."""
        return self.kind in CAN_PASS

    @property
    def is_final(self) -> bool:
        """Return True if a retry would only repeat the error."""
        return not self.can_pass and self.kind is not ErrorKind.UNKNOWN


def diagnose(error: BaseException) -> Diagnosis:
    """Classify an error by itself, its causes and the errors in its group."""
    return _found(error, set()) or _diagnosis(ErrorKind.UNKNOWN, error)


def unserved() -> Diagnosis:
    """Return the diagnosis of a thread that no process runs."""
    return Diagnosis(ErrorKind.UNSERVED, _SENTENCES[ErrorKind.UNSERVED])


# A chain of causes may have any length; `seen` ends cycles.
_MOST_CAUSES = 50


def _found(error: BaseException, seen: set[int]) -> Diagnosis | None:
    """Return the diagnosis of an error or its causes; None if none is known."""
    if id(error) in seen or len(seen) >= _MOST_CAUSES:
        return None
    seen.add(id(error))
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        parts = [
            _found(one, seen) or _diagnosis(ErrorKind.UNKNOWN, one)
            for one in group.exceptions
        ]
        # The worst error decides: a retry runs all failed parts again.
        return max(
            parts, key=lambda one: (one.is_final, not one.can_pass, one.retry_after_s)
        )
    own = _own(error)
    # A bug such as a ValueError often replaces the error that caused it, so its cause
    # comes first.
    if own is not None and own.kind is not ErrorKind.CODE:
        return own
    if error.__cause__ is not None:
        # Code that wraps an error names it as the cause: `raise ... from error`.
        cause = _found(error.__cause__, seen)
        return own if own is not None and not (cause and cause.can_pass) else cause
    if own is None and error.__context__ is not None and not error.__suppress_context__:
        # The error in context may be harmless, such as a KeyError of a cache.
        context = _found(error.__context__, seen)
        return context if context is not None and context.can_pass else None
    return own


def _own(error: BaseException) -> Diagnosis | None:
    """Return the diagnosis of an error without its causes."""
    if isinstance(error, KeyturnError):
        return _of_keyturn(error)
    if is_final(error):
        return _diagnosis(ErrorKind.LIMIT, error)
    kind = kind_of_error(error)
    return None if kind is None else _diagnosis(kind, error)


def _of_keyturn(error: KeyturnError) -> Diagnosis:
    # Before its base class: its own sentence contains the next step.
    if isinstance(error, BotKeyUnknown):
        return Diagnosis(ErrorKind.STORE, str(error))
    if isinstance(error, StoreUnavailable):
        return Diagnosis(ErrorKind.STORE, _SENTENCES[ErrorKind.STORE])
    if isinstance(error, StateUnknown):
        return Diagnosis(ErrorKind.STATE, str(error))
    kind = ErrorKind.GRAPH
    if isinstance(error, ThreadHalted):
        is_limit = not isinstance(error, AtBreakpoint)
        kind = ErrorKind.LIMIT if is_limit else ErrorKind.BREAKPOINT
    return Diagnosis(kind, str(error))


def _diagnosis(kind: ErrorKind, error: BaseException) -> Diagnosis:
    wait_s = retry_after_s(error) if kind in CAN_PASS else 0.0
    reason = _SENTENCES[kind].format(name=name_of(error))
    return Diagnosis(kind, reason, wait_s)


# Classes may be created from data, with any text as a name; do not show such text.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}", re.ASCII)


def name_of(error: BaseException) -> str:
    """Return an error's class with its HTTP status or its code of SQLite."""
    kind = type(error)
    root = kind.__module__.partition(".")[0]
    name = kind.__name__ if _NAME.fullmatch(kind.__name__) else "an error"
    is_named = root != "builtins" and _NAME.fullmatch(root)
    status = status_of(error)
    shown = f"{root}.{name}" if is_named else name
    if root == "sqlite3":
        # Its one class covers a lock, a full disk and much else.
        code = attribute(error, "sqlite_errorname")
        return f"{shown}, {code}" if isinstance(code, str) else shown
    return f"{shown}, HTTP {status}" if status else shown
