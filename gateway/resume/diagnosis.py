"""Diagnose a failed run's error: transient, permanent or unknown.

Transient errors are retried for a long time, permanent errors park the run at once, and
unknown errors are retried for a short time: a library may wrap an overloaded provider
in any exception, and user code may raise anything. An error is classified by its HTTP
status, by the name of its class, and else by its cause. The text of an error is neither
read nor shown, because it may quote arguments.

Names are compared, so that an agent may use any library without an import here:
clients, drivers and LangChain's model errors all call a timeout ``…Timeout…``. A limit
starts again from zero in the next attempt: a retry would spend the whole limit on model
calls and tools again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
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
        OUTAGE: a service, a database or this machine is unavailable or overloaded.
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

    OUTAGE = "outage"
    STORE = "store"
    STATE = "state"
    UNSERVED = "unserved"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    CODE = "code"
    LIMIT = "limit"
    BREAKPOINT = "breakpoint"
    GRAPH = "graph"


_FIRST_ERROR, _FIRST_SERVER_ERROR, _LAST_STATUS = 400, 500, 599
_TRANSIENT = frozenset({408, 409, 425, 429})
"""Statuses below 500 that clients of model providers retry."""
_PERMANENT = frozenset({501, 505})

_CODE = "UnsupportedProtocol|LocalProtocol|ProgrammingError|InvalidUpdate"
_REFUSED = "Cert|Fingerprint|Authentication"
_OUTAGE = (
    "Timeout|TimedOut|Connect|Network|Transport|ProtocolError|Proxy|SSL|Disconnect|"
    "IncompleteRead|ClientPayload|ChunkedEncoding|EndOfStream|BrokenResource|RateLimit|"
    "Overload|Unavailable|RetryableError|TryAgain|ReadOnlyError|ClusterDown|"
    "ServerSelection|OperationalError|InterfaceError|OperatorIntervention|"
    "InsufficientResources|gaierror|MemoryError"
)
_NAMES = (
    (ErrorKind.CODE, re.compile(_CODE)),
    (ErrorKind.REFUSED, re.compile(_REFUSED)),
    (ErrorKind.OUTAGE, re.compile(_OUTAGE)),
)
"""Parts of the names of classes; the most derived class counts, then the first row."""

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


def kind_of_error(error: BaseException) -> ErrorKind | None:
    """Return the kind of an error itself, without its causes; None if unknown."""
    if status := status_of(error):
        is_server = status >= _FIRST_SERVER_ERROR and status not in _PERMANENT
        can_pass = is_server or status in _TRANSIENT
        return ErrorKind.OUTAGE if can_pass else ErrorKind.REFUSED
    is_retryable = attribute(error, "is_retryable")  # LangChain's model errors
    if isinstance(is_retryable, bool):
        return ErrorKind.OUTAGE if is_retryable else ErrorKind.REFUSED
    if attribute(error, "sqlite_errorname") == "SQLITE_ERROR":
        return ErrorKind.CODE  # wrong SQL has the class of a locked database
    for one in type(error).__mro__:
        for kind, names in _NAMES:
            if names.search(one.__name__):
                return kind
    if isinstance(error, _BUGS):
        # Before OSError: waiting does not restore a missing file or a permission.
        return ErrorKind.CODE
    return ErrorKind.OUTAGE if isinstance(error, OSError) else None


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

    A date counts as none: the pauses between attempts then grow as usual.
    """
    response = attribute(error, "response")
    headers = attribute(error if response is None else response, "headers")
    try:
        found = float(cast("Mapping[str, str]", headers)["retry-after"])
    except Exception:  # noqa: BLE001 - no headers, foreign ones, or no number
        return 0.0
    # float() also takes "nan" and "inf".
    return min(found, LONGEST_S) if math.isfinite(found) and found > 0 else 0.0


CAN_PASS = frozenset(
    {ErrorKind.OUTAGE, ErrorKind.STORE, ErrorKind.STATE, ErrorKind.UNSERVED}
)

_SENTENCES: Mapping[ErrorKind, str] = {
    ErrorKind.OUTAGE: "Something that the agent needs is unavailable ({name}).",
    ErrorKind.STORE: "The store of the gateway does not answer.",
    ErrorKind.UNSERVED: "No process runs the agent for this thread at the moment.",
    ErrorKind.UNKNOWN: "The agent failed with an error that may pass ({name}).",
    ErrorKind.REFUSED: "A service that the agent needs refused its request ({name}).",
    ErrorKind.CODE: "The agent's code failed ({name}).",
    ErrorKind.LIMIT: "The run reached a limit of its graph ({name}).",
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
    shown = f"{root}.{name}" if is_named else name
    if status := status_of(error):
        return f"{shown}, HTTP {status}"
    # The one class of SQLite covers a lock, a full disk and much else.
    code = attribute(error, "sqlite_errorname")
    return f"{shown}, {code}" if isinstance(code, str) else shown
