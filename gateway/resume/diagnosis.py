"""Diagnose a failed run's error: transient, permanent or unknown.

What can pass is retried for long, what cannot is parked at once, and what is unknown is
retried for a short while: a library may wrap an overloaded provider in any exception of
its own, and user code may raise anything. An error is known by its class, by the HTTP
status or gRPC code that it carries, and else by what it was raised from. The text of an
error is never read, and never told: it may quote arguments.

No library is imported for that, so that an agent may use any of them. A limit that was
reached counts from zero in the next attempt: a retry would spend the whole limit on
model calls and tools again.
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
    """A thread stands where only the program that runs it may bring it forward.

    Attributes:
        is_announced: it was halted before, and those who have to know were told then.
    """

    def __init__(self, problem: str, *, is_announced: bool = False) -> None:
        self.is_announced = is_announced
        super().__init__(problem)


class AtBreakpoint(ThreadHalted):
    """A graph inside the thread's graph stopped at a static breakpoint of its own."""


def at_breakpoint(thread: str, *, is_announced: bool) -> AtBreakpoint:
    """Return the error about a thread that stands at a breakpoint."""
    return AtBreakpoint(
        f"The thread {thread!r} stands at a breakpoint (interrupt_before or "
        "interrupt_after) of a graph inside its graph, and is not run through it. Go "
        "on with the graph's own ainvoke(None, config), or take the breakpoint out "
        "and put the tools behind ApprovalMiddleware.",
        is_announced=is_announced,
    )


def at_limit(thread: str, limit: str) -> ThreadHalted:
    """Return the error about a thread that a limit stopped before."""
    return ThreadHalted(
        f"The thread {thread!r} was stopped by {limit} and is not tried again by "
        "itself; give it a new message, or run it again with a higher limit.",
        is_announced=True,
    )


CALL_LIMITS = (ModelCallLimitExceededError, ToolCallLimitExceededError)
"""Limits of LangChain's middleware. It stands in front of the tools, so calls that were
submitted before it cannot run."""

_LIMITS = (GraphRecursionError, *CALL_LIMITS)
_FINAL = (*_LIMITS, ThreadHalted)


def is_limit(error: BaseException) -> bool:
    """Return True if a limit of LangGraph or LangChain ended the step."""
    return isinstance(error, _LIMITS)


def is_final(error: BaseException) -> bool:
    """Return True if the same step ends in the same error however often it is tried."""
    return isinstance(error, _FINAL)


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


LONGEST_S = 3600.0
"""A service that asks for more is asked again after this long all the same."""


def retry_after_s(error: BaseException) -> float:
    """Return the seconds that an HTTP error's ``Retry-After`` asks for; 0 for none.

    The headers are those of the error or of its response, as the common clients have
    them. ``retry-after-ms`` is what some model providers send beside it.
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
    """Return the seconds until an HTTP date, by the clock of who wrote it."""
    at, now = _date(text), _date(_header(headers, "date"))
    if at is None or now is None:
        return 0.0
    return max(0.0, (at - now).total_seconds())


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    # Python returns a date with the zone "-0000", which is UTC too, without a zone.
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
    """What is known of an error.

    Attributes:
        kind: its kind.
        reason: one sentence of ours, without anything that the error quotes.
        retry_after_s: how long the refusing service asked us to wait; 0 if unsaid.
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
    """Return what is known of an error, of its causes and of the errors in a group."""
    return _found(error, set()) or _diagnosis(ErrorKind.UNKNOWN, error)


def unserved() -> Diagnosis:
    """Return the diagnosis of a thread that no process runs."""
    return Diagnosis(ErrorKind.UNSERVED, _SENTENCES[ErrorKind.UNSERVED])


# A chain of causes may be as long as a program likes; circles end by what was seen.
_MOST_CAUSES = 50


def _found(error: BaseException, seen: set[int]) -> Diagnosis | None:
    """Return what an error or its causes are known as; None when nothing is known."""
    if id(error) in seen or len(seen) >= _MOST_CAUSES:
        return None
    seen.add(id(error))
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        parts = [
            _found(one, seen) or _diagnosis(ErrorKind.UNKNOWN, one)
            for one in group.exceptions
        ]
        # The worst one decides: a retry runs all that failed together again.
        return max(
            parts, key=lambda one: (one.is_final, not one.can_pass, one.retry_after_s)
        )
    own = _own(error)
    # A bug such as a ValueError often stands for what it was raised from, so its cause
    # comes first.
    if own is not None and own.kind is not ErrorKind.CODE:
        return own
    if error.__cause__ is not None:
        # Who wraps an error names it as the cause: `raise ValueError(...) from error`.
        cause = _found(error.__cause__, seen)
        return own if own is not None and not (cause and cause.can_pass) else cause
    if own is None and error.__context__ is not None and not error.__suppress_context__:
        # What was being handled may be harmless, such as a KeyError of a cache.
        context = _found(error.__context__, seen)
        return context if context is not None and context.can_pass else None
    return own


def _own(error: BaseException) -> Diagnosis | None:
    """Return what an error is known as by itself."""
    if isinstance(error, KeyturnError):
        return _of_keyturn(error)
    if is_final(error):
        return _diagnosis(ErrorKind.LIMIT, error)
    kind = kind_of_error(error)
    return None if kind is None else _diagnosis(kind, error)


def _of_keyturn(error: KeyturnError) -> Diagnosis:
    # Before its base class: its own sentence says what to do.
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


# Classes may be made of data, with any text as a name; it must not reach people.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}", re.ASCII)


def name_of(error: BaseException) -> str:
    """Return an error's class, and the HTTP status or code of SQLite it carries."""
    kind = type(error)
    root = kind.__module__.partition(".")[0]
    name = kind.__name__ if _NAME.fullmatch(kind.__name__) else "an error"
    is_named = root != "builtins" and _NAME.fullmatch(root)
    status = status_of(error)
    shown = f"{root}.{name}" if is_named else name
    if root == "sqlite3":
        # Its one class stands for a lock, a full disk and much else.
        code = attribute(error, "sqlite_errorname")
        return f"{shown}, {code}" if isinstance(code, str) else shown
    return f"{shown}, HTTP {status}" if status else shown
