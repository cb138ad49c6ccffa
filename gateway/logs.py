"""Write structured logs to stderr, one line per event, as text or JSON.

Events are named ``thing.happened`` and carry ids, states and digests, never arguments,
texts of people or secrets. A program that embeds Keyturn configures logging itself.
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
from datetime import UTC, datetime
from typing import Literal

from keyturn.gateway.failures import FAILURE, Failure, described
from keyturn.gateway.setting_forms import SettingsModel

REPEATED_AFTER_S = 60.0
"""Interval in which an equal warning or error is written once."""

_MOST_LINES = 500

_NAMED = re.compile(r"(\w+)=(%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z])")
_REPEATED = "keyturn_repeated"
"""Attribute of a record: number of suppressed repeats before it."""


class LogSettings(SettingsModel):
    """Settings of the log.

    Attributes:
        level: lowest level that is written.
        format: ``text`` is for people, ``json`` for log collectors.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


def write_logs(settings: LogSettings, *, shows_errors: bool = False) -> None:
    """Write the process's events to stderr from now on; called once, at the start.

    Args:
        settings: level and format.
        shows_errors: True shows texts and tracebacks of foreign errors. They may quote
            arguments of tools: for a developer's own machine only.
    """
    handler = logging.StreamHandler(sys.stderr)
    is_json = settings.format == "json"
    handler.setFormatter((_Json if is_json else _Text)(shows_errors=shows_errors))
    # On the handler and not on a logger: a logger's filter does not get the records of
    # its children.
    handler.addFilter(Repeats())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # Records of other libraries are written from WARNING on.
    logging.getLogger("keyturn").setLevel(settings.level.upper())


class Repeats(logging.Filter):
    """Write a line at most once a minute, however often it is repeated.

    Garbage from strangers, or an unavailable store, would fill a log with one line. The
    next written line contains the number of repeats.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lines: OrderedDict[tuple[str, str], _Line] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True to write a record; errors of this minute are written once."""
        # Normal events are never dropped: they may be counted.
        if record.levelno < logging.WARNING:
            return True
        now_s = self._clock()
        try:
            key = (record.name, record.getMessage())
        # Arguments that do not fit their message: logging reports this itself when it
        # writes the record. Raised here, the error would reach the caller.
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
        # Strangers choose part of some lines; the table must remain bounded.
        while len(self._lines) > _MOST_LINES:
            self._lines.popitem(last=False)
        return True


@dataclass(slots=True)
class _Line:
    until_s: float
    repeats: int = 0


class _Text(logging.Formatter):
    """One line an event: time, level, event and fields; its traceback if shown."""

    def __init__(self, *, shows_errors: bool = False) -> None:
        super().__init__()
        self._shows_errors = shows_errors

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event; no field can start another line."""
        more = "".join(f" {name}={value}" for name, value in _added(record).items())
        line = f"{_at(record)} {record.levelname:<7} {record.getMessage()}{more}"
        trace = self.trace(record)
        return f"{_shown(line)}\n{trace}" if trace else _shown(line)

    def trace(self, record: logging.LogRecord) -> str:
        """Return the text and traceback of a record's error; "" if not shown."""
        error = _error_of(record)
        failure = getattr(record, FAILURE, Failure(error) if error else None)
        if not self._shows_errors or not isinstance(failure, Failure):
            return ""
        return "\n".join(map(_shown, failure.text().splitlines()))


class _Json(_Text):
    """One JSON object a line: time, level, logger, event and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        row = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            **_fields(record),
        }
        if trace := self.trace(record):
            row["trace"] = trace
        # In ASCII: no other separator of lines or control character of a terminal.
        return json.dumps(row)


def _at(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"


def _shown(text: str) -> str:
    # A line break or an escape sequence in a field could forge another line.
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _error_of(record: logging.LogRecord) -> BaseException | None:
    """Return the error that a library logged with a record."""
    return record.exc_info[1] if record.exc_info else None


def _added(record: logging.LogRecord) -> dict[str, str]:
    """Return the fields that are added to a record's own message."""
    found: dict[str, str] = {}
    if repeated := getattr(record, _REPEATED, 0):
        found["repeated"] = str(repeated)
    if error := _error_of(record):
        # In the form of `log_failure`: type and place.
        found["error"] = described(error)
    return found


def _fields(record: logging.LogRecord) -> dict[str, str]:
    """Return event and fields by name, if the record has Keyturn's form."""
    template, args = str(record.msg), record.args
    named = _NAMED.findall(template)
    found = {"event": template.partition(" ")[0]}
    if isinstance(args, tuple) and named and len(named) == len(args):
        pairs = zip(named, args, strict=True)
        found |= {name: form % (value,) for (name, form), value in pairs}
    else:
        found["message"] = record.getMessage()
    return found | _added(record)
