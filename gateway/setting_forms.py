"""Forms of texts in settings, and the settings that more than one package reads.

Error texts show a pattern's description after "write". A duration has the form
``500ms``, ``90s``, ``30m``, ``1h`` or ``2d``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
)

_OBJECT = re.compile(r"[^:\s][^:]*:[A-Za-z_][A-Za-z0-9_]*")

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_DURATION = re.compile(r"(?P<count>[1-9][0-9]{0,6})(?P<unit>ms|s|m|h|d)", re.ASCII)
_LONGEST = timedelta(days=30)

AUDIT_KEPT = timedelta(days=400)
"""Default retention of audit entries."""

_SHORTEST = 30
"""Days for which approvals are kept: the log must outlive its approvals."""

MESSAGES_KEPT = timedelta(days=30)
"""Default time after which messages in Slack lose their details."""

_NEVER = "never"

_PERCENT = re.compile(r"(?P<share>[1-9][0-9]?)%", re.ASCII)
_DAYS = re.compile(r"(?P<count>[1-9][0-9]{0,4})d", re.ASCII)

_MEMORY = frozenset({"memory", ":memory:"})
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class SettingsModel(BaseModel):
    """A part of the settings: unknown keys are refused, and errors show no value."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def is_safe_url(url: str) -> bool:
    """Return True for ``https``, and for ``http`` on this machine."""
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    return bool(parts.hostname) and (parts.scheme == "https" or is_local)


def _safe_url(url: str) -> str:
    if not is_safe_url(url):
        raise ValueError(
            f"{url!r} could be read or answered by anybody on the way; write "
            "https://…, or http:// on this machine."
        )
    return url


SafeUrl = Annotated[str, AfterValidator(_safe_url)]
"""The URL of a server that gets or sends secrets."""


def below(path: Path, info: ValidationInfo) -> Path:
    """Return a path relative to the folder of the settings file.

    The file is the context of the validation; without one the path stays relative.
    """
    folder = info.context.parent.resolve() if info.context else Path()
    try:
        return folder / path.expanduser()
    except RuntimeError:
        raise ValueError("the home folder is not known; write it out.") from None


FolderPath = Annotated[Path, AfterValidator(below)]
"""A path, relative to the folder of the settings file."""


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


def _object(text: str, info: ValidationInfo) -> str:
    if _OBJECT.fullmatch(text) is None:
        raise ValueError(f"{text!r} names no object; write 'folder/file.py:name'.")
    file, _, name = text.rpartition(":")
    # A dotted module has no folder.
    return f"{below(Path(file), info)}:{name}" if file.endswith(".py") else text


AgentName = Annotated[str, AfterValidator(_agent_name)]
"""The name of an agent in its code; see `gateway.client.http_gateway.agent_name`."""

ObjectRef = Annotated[str, AfterValidator(_object)]
"""Place of a graph or a triage, as ``file.py:name``."""

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

OrganizationId = Annotated[
    str,
    Field(
        pattern=r"^(E[A-Z0-9]+)?$",
        description="the id of an Enterprise organization, such as E0123456789",
    ),
]
"""An organization of Slack; "" for none."""

TenantName = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$",
        description="lower-case letters, digits, '-' and '_', 64 at most",
    ),
]
"""The name of a tenant; it is a part of keys in the store."""


def parse_duration(
    text: object, longest: timedelta = _LONGEST, units: Collection[str] = "smhd"
) -> timedelta:
    """Parse a duration; a parsed one is returned unchanged.

    Raises:
        ValueError: for anything else, and for a longer one.
    """
    if isinstance(text, timedelta):
        return text
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None or match["unit"] not in units:
        raise ValueError(f"{text!r} is not a duration; write 90s, 30m, 1h or 2d.")
    duration = int(match["count"]) * _UNITS[match["unit"]]
    if duration > longest:
        raise ValueError(f"{text!r} is longer than {longest.days} days; shorten it.")
    return duration


def parse_share(value: object) -> int:
    """Parse ``50%``, or 50 for the same.

    Raises:
        ValueError: for anything else.
    """
    # bool is an int: `true` would be one percent.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a share; write 50%.")
    return int(match["share"])


def _pause(value: object) -> timedelta:
    return parse_duration(value, units=_UNITS)


def _days(value: object, least: int = _SHORTEST, more: str = "") -> timedelta:
    if isinstance(value, timedelta):
        return value
    match = _DAYS.fullmatch(value) if isinstance(value, str) else None
    days = int(match["count"]) if match else 0
    if days < least:
        raise ValueError(f"{value!r} cannot be used; write {least}d or more{more}.")
    return timedelta(days=days)


def _days_or_never(value: object) -> timedelta | None:
    is_never = value is None or value == _NEVER
    return None if is_never else _days(value, 1, f", or {_NEVER}")


class RetentionSettings(SettingsModel):
    """Retention of data in the store and in Slack that grows with every call.

    Attributes:
        audit: entries of the audit log.
        messages: details in Slack messages, after their approval has ended; None: for
            ever.
    """

    audit: Annotated[timedelta, BeforeValidator(_days)] = AUDIT_KEPT
    messages: Annotated[timedelta | None, BeforeValidator(_days_or_never)] = (
        MESSAGES_KEPT
    )


Time = Annotated[timedelta, BeforeValidator(parse_duration)]
Pause = Annotated[timedelta, BeforeValidator(_pause)]
"""A duration that may be a part of a second, such as ``500ms``."""


class RetrySettings(SettingsModel):
    """Time limits for retries of a run after a transient error.

    Attributes:
        limit: shortest time of retries: a run with an approved call is retried until
            that approval has ended, if that is later.
        unknown_limit: time of retries for an error of unknown kind.
        notify_after: wait of a run before people are notified.
        first: the first pause; each later pause is twice as long.
        longest: the longest pause, unless a service asks for a longer one.
    """

    limit: Time = timedelta(hours=24)
    unknown_limit: Time = timedelta(minutes=15)
    notify_after: Time = timedelta(seconds=5)
    first: Pause = timedelta(milliseconds=500)
    longest: Pause = timedelta(seconds=60)


class KeySettings(SettingsModel):
    """Place of the keys, and public keys of other processes by their role.

    ``folder`` None is ``keys`` in the data folder. These keys are valid in addition to
    those in the folder; `Keyring` parses them.
    """

    folder: FolderPath | None = None
    bot: tuple[str, ...] = ()
    gateway: tuple[str, ...] = ()
    audit: tuple[str, ...] = ()


def is_postgres(place: str) -> bool:
    """Return True for a Postgres database, False for a SQLite file."""
    return urlsplit(place).scheme in {"postgres", "postgresql"}


def _place(place: SecretStr, info: ValidationInfo) -> SecretStr:
    """Refuse a place that would create a file although another database is meant.

    ``postgresql+asyncpg://…`` of another library would be the path of a new file: each
    gateway would keep separate threads, and the password would be part of a path.
    """
    text = place.get_secret_value().strip()
    if is_postgres(text):
        return SecretStr(text)
    # Not only at the beginning: `docker --env-file` keeps quotes in the value.
    if text in _MEMORY or "://" in text:
        # The error is without the place, which may contain a password.
        raise ValueError(
            "checkpoints would be lost there; write the path of a SQLite file, or "
            "postgresql://user:password@host/name."
        )
    return SecretStr(str(below(Path(text), info)))


CheckpointPlace = Annotated[SecretStr, AfterValidator(_place)]
"""The place of checkpoints; the URL of a Postgres database may contain a password."""
