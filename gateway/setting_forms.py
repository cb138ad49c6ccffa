"""Forms of texts in settings, and the settings that more than one package reads.

Error texts show a pattern's description after "write". A duration has the form
``500ms``, ``90s``, ``30m``, ``1h`` or ``2d``.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
)

_REF = re.compile(r"[^:\s][^:]*:[A-Za-z_][A-Za-z0-9_]*")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?P<count>[1-9][0-9]{0,6})(?P<unit>[smhd])", re.ASCII)
_LONGEST = timedelta(days=30)

_PAUSE = re.compile(r"(?P<count>[1-9][0-9]{0,6})ms", re.ASCII)

AUDIT_KEPT = timedelta(days=400)
"""Default retention of audit entries."""

_SHORTEST = 30
"""Days for which approvals are kept: the log must outlive its approvals."""

MESSAGES_KEPT = timedelta(days=30)
"""Default time after which messages in Slack lose their details."""

_NEVER = "never"

_DAYS = re.compile(r"(?P<count>[1-9][0-9]{0,4})d", re.ASCII)

# As `keyturn keys list` prints them; each is parsed completely when a process starts.
_PUBLIC = re.compile(r"[^\s+]+\+[0-9a-f]{8}\+[A-Za-z0-9+/]+=*", re.ASCII)

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.ASCII | re.IGNORECASE)
_MEMORY = frozenset({"memory", ":memory:"})
_WRITE = "write the path of a SQLite file, or postgresql://user:password@host/name"


def is_name(text: str) -> bool:
    """Return True if an agent or a tool can have this name in code, policy and keys."""
    return text.strip() == text != "" and text.isprintable()


def _agent_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(
            f"{name!r} is no name of an agent; write one such as 'support', without "
            "blanks around it or characters that nobody sees."
        )
    return name


def _named(what: str, text: str) -> str:
    if _REF.fullmatch(text) is None:
        raise ValueError(f"{text!r} names no {what}; write 'folder/file.py:name'.")
    return text


AgentName = Annotated[str, AfterValidator(_agent_name)]
"""The name of an agent in its code; see `gateway.client.http_gateway.agent_name`."""

GraphRef = Annotated[str, AfterValidator(partial(_named, "graph"))]
"""Place of a graph, as ``file.py:name``."""

TriageRef = Annotated[str, AfterValidator(partial(_named, "triage"))]
"""Place of a triage, in the same form."""

ChannelName = Annotated[
    str,
    Field(
        pattern=r"^(#[^\s#]{1,80}|[CG][A-Z0-9]+)?$",
        description="#name in quotes, or an id such as C0123456789",
    ),
]
"""A channel of Slack, by name or id; "" is none."""

CommandName = Annotated[
    str,
    Field(
        pattern=r"^/[a-z0-9_-]{1,31}$",
        description="a command such as /approvals, in lower case",
    ),
]
"""A slash command of Slack."""

TeamId = Annotated[
    str,
    Field(
        pattern=r"^(T[A-Z0-9]+)?$",
        description="the id of a workspace, such as T0123456789",
    ),
]
"""A workspace of Slack; "" is that of the bot token."""

TenantName = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$",
        description="lower-case letters, digits, '-' and '_', 64 at most",
    ),
]
"""The name of a tenant; it is a part of keys in the store."""


def parse_pause(text: object) -> timedelta:
    """Parse a duration that may be a part of a second, such as ``500ms``.

    Raises:
        ValueError: as `parse_duration`.
    """
    match = _PAUSE.fullmatch(text) if isinstance(text, str) else None
    return (
        timedelta(milliseconds=int(match["count"])) if match else parse_duration(text)
    )


def parse_duration(text: object) -> timedelta:
    """Parse a duration; a parsed one is returned unchanged.

    Raises:
        ValueError: for anything else, and for more than 30 days.
    """
    if isinstance(text, timedelta):
        return text
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write 90s, 30m, 1h or 2d.")
    duration = timedelta(seconds=int(match["count"]) * _UNITS[match["unit"]])
    if duration > _LONGEST:
        raise ValueError(f"{text!r} is longer than 30 days; choose a shorter time.")
    return duration


def _number_of_days(value: object, what_to_write: str) -> timedelta:
    if isinstance(value, timedelta):
        return value
    match = _DAYS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a number of days; write {what_to_write}.")
    return timedelta(days=int(match["count"]))


def _days_or_never(value: object) -> timedelta | None:
    if value is None or value == _NEVER:
        return None
    return _number_of_days(value, f"30d, or {_NEVER} to leave messages as they are")


def _days(value: object) -> timedelta:
    found = _number_of_days(value, "400d")
    if found.days < _SHORTEST:
        raise ValueError(
            f"{value!r} is shorter than approvals are kept; write {_SHORTEST}d or more."
        )
    return found


class RetentionSettings(BaseModel):
    """Retention of data in the store and in Slack that grows with every call.

    Attributes:
        audit: entries of the audit log.
        messages: details in Slack messages, after their approval has ended; None: for
            ever.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    audit: Annotated[timedelta, BeforeValidator(_days)] = AUDIT_KEPT
    messages: Annotated[timedelta | None, BeforeValidator(_days_or_never)] = (
        MESSAGES_KEPT
    )


def _public(text: str) -> str:
    if _PUBLIC.fullmatch(text.strip()) is None:
        raise ValueError(
            f"{text[:100]!r} is no public key; copy a line of 'keyturn keys list'."
        )
    return text.strip()


PublicKeyText = Annotated[str, AfterValidator(_public)]


class KeySettings(BaseModel):
    """Place of the keys, and public keys of other processes by their role.

    ``folder`` None is ``keys`` in the data folder. These keys are valid in addition to
    those in the folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    folder: Path | None = None
    bot: tuple[PublicKeyText, ...] = ()
    gateway: tuple[PublicKeyText, ...] = ()
    audit: tuple[PublicKeyText, ...] = ()

    def below(self, base: Path) -> Self:
        """Return the settings with the folder's name relative to another folder."""
        if self.folder is None:
            return self
        return self.model_copy(update={"folder": base / self.folder.expanduser()})


def is_postgres(place: str) -> bool:
    """Return True for a Postgres database, False for a SQLite file."""
    return urlsplit(place).scheme in {"postgres", "postgresql"}


def check_place(place: str) -> None:
    """Refuse a place that would create a file although another database is meant.

    ``postgresql+asyncpg://…`` of another library would be the path of a new file: each
    gateway would keep separate threads, and the password would be part of a path.

    Raises:
        ValueError: its text omits the place, which may contain a password.
    """
    if place in _MEMORY:
        raise ValueError(
            f"checkpoints in memory would be lost with the process; {_WRITE}."
        )
    if _URL.match(place) and not is_postgres(place):
        raise ValueError(
            f"this is no place for checkpoints; {_WRITE} (without '+' and a driver)."
        )


def checked_place(place: SecretStr) -> SecretStr:
    """Return a place that `check_place` allows; for a setting."""
    check_place(place.get_secret_value())
    return place
