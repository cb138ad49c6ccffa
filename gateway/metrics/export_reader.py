"""Parse an audit export (JSON Lines) into events, one line at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import ValidationError

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.errors import BadJson, SettingsError
from keyturn.gateway.protocol.strict_json import parse_object
from keyturn.gateway.validation_errors import sentence

_LAST_MS = 253_402_000_000_000
"""Near the end of the year 9999, so that it can be shown in any time zone."""


def events_of(lines: Iterable[str], source: str) -> Iterator[Event]:
    """Yield the event of each line; empty lines are skipped.

    Lines are read one at a time, so a file may have any size.

    Args:
        lines: of `keyturn audit export`.
        source: name of the file, for errors.

    Raises:
        SettingsError: names the line that is not a row of an export.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _event(line, f"{source}:{number}")


def _event(line: str, place: str) -> Event:
    try:
        row = parse_object(line)
        # The arguments next to an event are not part of it.
        known = {name: row[name] for name in Event.model_fields if name in row}
        event = Event.model_validate(known)
    except BadJson as error:
        raise SettingsError(f"{place}: This is not a row of JSON: {error}") from error
    except ValidationError as error:
        problem = sentence(error.errors()[0], Event)
        raise SettingsError(f"{place}: {problem}") from error
    if not 0 < event.at_ms <= _LAST_MS:
        raise SettingsError(f"{place}: 'at_ms' is missing, or is not a time.")
    return event
