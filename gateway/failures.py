"""Log failures by error class and location, without the error's own text.

The text of a foreign error, and so its traceback, may quote a tool's arguments or a
person's words. Neither reaches a production log. A developer's log shows them
(`keyturn.gateway.logs.write_logs`): each record carries its error in a `Failure`, which
no other handler can read by printing or serialising the record.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from pathlib import Path
from typing import cast

from keyturn.gateway.errors import KeyturnError

FAILURE = "failure"
"""Name of a log record's attribute with its `Failure`."""

_PLACES = 8
_EXITS = (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)


class _NoMatch(BaseException):
    """Never raised: an ``except`` clause with it catches nothing."""


def any_failure() -> type[BaseException]:
    """Return the class for an ``except`` clause that catches everything except an exit.

    A library in Rust panics with an error that is not an `Exception`
    (``pyo3_runtime.PanicException``, a class that cannot be imported). It would
    silently end a loop that catches `Exception`. Write ``except any_failure() as
    error:`` where one failure must not end the others. The clause checks the error in
    flight.
    """
    return _NoMatch if _is_exit(sys.exception()) else BaseException


def _is_exit(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(
            map(_is_exit, cast("BaseExceptionGroup[BaseException]", error).exceptions)
        )
    return isinstance(error, _EXITS)


class Failure:
    """An error for a log that may show its text; ``str()`` does not reveal the text."""

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def text(self) -> str:
        """Return the error's traceback with its text and the texts of its causes."""
        return "".join(traceback.format_exception(self._error)).rstrip()


def log_failure(
    logger: logging.Logger, error: BaseException, event: str, *values: object
) -> None:
    """Log an error that a process survives.

    Args:
        logger: of the module that survives it.
        error: the error.
        event: its meaning here, a constant with ``%s`` for each of the values.
        values: ids and names; no arguments of a tool.
    """
    message = event % values
    # In a holder without a text: a foreign handler that writes every attribute of a
    # record must not write the error's text.
    carried = {FAILURE: Failure(error)}
    logger.error("%s error=%s", message, described(error), stacklevel=2, extra=carried)


class Outage:
    """Logs that a service went away and that it is back, once each.

    Args:
        logger: of the module that uses the service.
        of: the service, for people.
    """

    def __init__(self, logger: logging.Logger, of: str) -> None:
        self._logger, self._of, self._lasts = logger, of, False

    def goes_on(self, error: KeyturnError) -> None:
        """Log the first failed request; the error's text suffices for people."""
        if not self._lasts:
            self._logger.warning("outage.began of=%s error=%s", self._of, error)
        self._lasts = True

    def ends(self) -> None:
        """Log the first successful request after failed ones."""
        if self._lasts:
            self._logger.warning("outage.ended of=%s", self._of)
        self._lasts = False


def described(error: BaseException) -> str:
    """Return an error's class, its path through the code, and its causes.

    The places run from the innermost outwards. Only Keyturn's own errors have their
    text added: it contains no argument and no secret.
    """
    words = f" {error}" if isinstance(error, KeyturnError) else ""
    # The innermost ones show the origin; the outer ones are always the same loop.
    frames = traceback.extract_tb(error.__traceback__)[-_PLACES:]
    places = " < ".join(
        f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames)
    )
    causes: list[BaseException] = []
    if error.__cause__ is not None:
        causes.append(error.__cause__)
    if isinstance(error, BaseExceptionGroup):
        causes.extend(cast("BaseExceptionGroup[BaseException]", error).exceptions)
    inside = "".join(f"; from {described(cause)}" for cause in causes)
    name = type(cast("object", error)).__name__
    return f"{name}{words} [{places}]{inside}"
