"""Diagnose a failed run's error: transient, permanent or unknown.

What can pass is retried for long, what cannot is parked at once, and what is unknown is
retried for a short while: a library may wrap an overloaded provider in any exception of
its own, and user code may raise anything. An error is known by its class, by the HTTP
status or gRPC code that it carries, and else by what it was raised from. The text of an
error is never read, and never told: it may quote arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from twokey.gateway.errors import (
    BotKeyUnknown,
    NewerRecord,
    StateUnknown,
    StoreUnavailable,
    TwokeyError,
)
from twokey.gateway.resume.classification import AtBreakpoint, ThreadHalted, is_final
from twokey.gateway.resume.known_errors import (
    ErrorKind,
    attribute,
    kind_of_error,
    status_of,
)
from twokey.gateway.resume.retry_after import retry_after_s

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
    if isinstance(error, TwokeyError):
        return _of_twokey(error)
    if is_final(error):
        return _diagnosis(ErrorKind.LIMIT, error)
    kind = kind_of_error(error)
    return None if kind is None else _diagnosis(kind, error)


def _of_twokey(error: TwokeyError) -> Diagnosis:
    # Before their base class: their own sentences say what to do.
    if isinstance(error, BotKeyUnknown | NewerRecord):
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
