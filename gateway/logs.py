"""Write what happens to stderr, one line an event, for people or for a collector.

Events are named ``thing.happened`` and carry ids, states and digests, never arguments,
texts of people or secrets. A library that embeds Twokey sets up logging by itself.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

OURS = ("gateway", "bot")
"""Loggers of Twokey; other libraries are heard from WARNING on."""

_NAMED = re.compile(r"(\w+)=%[sd]")


class Level(StrEnum):
    """From which importance on events are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Format(StrEnum):
    """``text`` is for people, ``json`` for whatever collects logs."""

    TEXT = "text"
    JSON = "json"


class LogSettings(BaseModel):
    """What is logged, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    level: Level = Level.INFO
    format: Format = Format.TEXT


def write_logs(settings: LogSettings) -> None:
    """Write the process's events to stderr from now on; called once, at the start."""
    handler = logging.StreamHandler(sys.stderr)
    lines = _Json() if settings.format is Format.JSON else _Text()
    handler.setFormatter(lines)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in OURS:
        logging.getLogger(name).setLevel(settings.level.upper())


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the line of an event; nothing in a field can begin another one."""
        shown = (
            one if one.isprintable() else ascii(one)[1:-1] for one in record.message
        )
        record.message = "".join(shown)
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
        if record.exc_info:
            row["trace"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, str]:
    """Return the event and its fields by name, when it is written as ours are."""
    template, args = str(record.msg), record.args
    names = _NAMED.findall(template)
    event, _, _ = template.partition(" ")
    if isinstance(args, tuple) and names and len(names) == len(args):
        values = (str(value) for value in args)
        return {"event": event, **dict(zip(names, values, strict=True))}
    return {"event": event, "message": record.getMessage()}
