"""Write structured logs to stderr, one line per event, as text or JSON.

Events are named ``thing.happened`` and carry ids, states and digests, never arguments,
texts of people or secrets. A library that embeds Keyturn sets up logging by itself.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from keyturn.gateway.failures import FAILURE, Failure, described

REPEATED_AFTER_S = 60.0
"""How long the same warning or error is written once."""

_MOST_LINES = 500

_NAMED = re.compile(r"(\w+)=(%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z])")
_REPEATED = "keyturn_repeated"
"""Attribute of a record: how often its line was left out before it."""


class LogSettings(BaseModel):
    """What is logged, and how.

    Attributes:
        level: from which importance on events are written.
        format: ``text`` is for people, ``json`` for whatever collects logs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


def write_logs(settings: LogSettings, *, shows_errors: bool = False) -> None:
    """Write the process's events to stderr from now on; called once, at the start.

    Args:
        settings: what is written, and how.
        shows_errors: whether the words of foreign errors are shown, with tracebacks.
            They may quote arguments of tools: for a developer's own machine only.
    """
    handler = logging.StreamHandler(sys.stderr)
    is_json = settings.format == "json"
    handler.setFormatter((_Json if is_json else _Text)(shows_errors=shows_errors))
    # On the handler and not on a logger: a logger's filter does not see what its
    # children log.
    handler.addFilter(Repeats())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # Other libraries are heard from WARNING on.
    logging.getLogger("keyturn").setLevel(settings.level.upper())


class Repeats(logging.Filter):
    """Let a line through once a minute, however often it is repeated.

    Strangers who send garbage, and a store that is away, would fill a log with one
    line. The next one that is let through says how many there were meanwhile.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lines: OrderedDict[tuple[str, str], _Line] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record; errors of this minute are written once."""
        # Events of normal work are never dropped: they may be counted.
        if record.levelno < logging.WARNING:
            return True
        now_s = self._clock()
        try:
            key = (record.name, record.getMessage())
        # Arguments that do not fit their message: logging reports that itself, where it
        # writes the record. Raised here, it would reach who logged.
        except Exception:  # noqa: BLE001 - `%` calls methods of any argument
            return True
        line = self._lines.get(key)
        if line is not None and now_s < line.until_s:
            line.repeats += 1
            return False
        if line is not None and line.repeats:
            # Not into the message: without arguments a "%" in it is only a character.
            setattr(record, _REPEATED, line.repeats)
        self._lines[key] = _Line(now_s + REPEATED_AFTER_S)
        self._lines.move_to_end(key)
        # Strangers choose part of some lines; the table stays bounded.
        while len(self._lines) > _MOST_LINES:
            self._lines.popitem(last=False)
        return True


@dataclass(slots=True)
class _Line:
    until_s: float
    repeats: int = 0


class _Text(logging.Formatter):
    def __init__(self, *, shows_errors: bool = False) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        self.converter = time.gmtime
        self._shows_errors = shows_errors

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event, and the traceback of its error if shown."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        # Not that of `super`: it adds the traceback of a library's error, words and
        # all, whatever is to be shown.
        line, trace = self.formatMessage(record), self.trace(record)
        return f"{line}\n{trace}" if trace else line

    def trace(self, record: logging.LogRecord) -> str:
        """Return the words and places of a record's error; "" where not shown."""
        error = _error_of(record)
        failure = getattr(record, FAILURE, Failure(error) if error else None)
        if not self._shows_errors or not isinstance(failure, Failure):
            return ""
        return "\n".join(map(_shown, failure.text().splitlines()))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the line of an event; nothing in a field can begin another one."""
        more = "".join(f" {name}={value}" for name, value in _added(record).items())
        record.message = _shown(f"{record.message}{more}")
        return super().formatMessage(record)


class _Json(_Text):
    """One object a line: when, how important, which event, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        row = {
            "at": f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **_fields(record),
        }
        if trace := self.trace(record):
            row["trace"] = trace
        line = json.dumps(row, ensure_ascii=False)
        # JSON lets some of what ends a line elsewhere, or controls a terminal, stand.
        return "".join(
            one if one.isprintable() else json.dumps(one)[1:-1] for one in line
        )


def _shown(text: str) -> str:
    # A line break or an escape sequence in a field could write a line of its own.
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _error_of(record: logging.LogRecord) -> BaseException | None:
    """Return the error that a library logged with a record."""
    return record.exc_info[1] if record.exc_info else None


def _added(record: logging.LogRecord) -> dict[str, str]:
    """Return what is said of a record beside its own message."""
    repeated, error = getattr(record, _REPEATED, 0), _error_of(record)
    return {
        **({"repeated": str(repeated)} if repeated else {}),
        # As `log_failure` does it: type and place.
        **({"error": described(error)} if error else {}),
    }


def _fields(record: logging.LogRecord) -> dict[str, str]:
    """Return the event and its fields by name, when it is written as ours are."""
    template, args = str(record.msg), record.args
    named = _NAMED.findall(template)
    event, _, _ = template.partition(" ")
    more = _added(record)
    if isinstance(args, tuple) and named and len(named) == len(args):
        pairs = zip(named, args, strict=True)
        return {
            "event": event,
            **{name: one % (v,) for (name, one), v in pairs},
            **more,
        }
    return {"event": event, "message": record.getMessage(), **more}
