"""Parse an audit export (JSON Lines), one line at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from pydantic import ValidationError

from keyturn.gateway.errors import BadJson, SettingsError
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import parse_object
from keyturn.gateway.validation_errors import sentence

LAST_MS = 253_402_000_000_000
"""Near the end of the year 9999, so that it can be shown in any time zone."""

Row = TypeVar("Row", bound=Record)


def read_export(lines: Iterable[str], source: str, kind: type[Row]) -> Iterator[Row]:
    """Yield the row of each line; empty lines are skipped.

    Lines are read one at a time, so a file may have any size.

    Args:
        lines: of `keyturn audit export`.
        source: name of the file, for errors.
        kind: the record to read; other keys of a line are ignored.

    Raises:
        SettingsError: names the line that is not a row of an export.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{source}:{number}"
        try:
            row = parse_object(line)
            fields = {name: row[name] for name in kind.model_fields if name in row}
            found = kind.model_validate(fields)
        except BadJson as error:
            raise SettingsError(
                f"{place}: This is not a row of JSON: {error}"
            ) from error
        except ValidationError as error:
            problem = sentence(error.errors()[0], kind)
            raise SettingsError(f"{place}: {problem}") from error
        at_ms = row.get("at_ms")
        if not isinstance(at_ms, int) or not 0 <= at_ms <= LAST_MS:
            raise SettingsError(f"{place}: 'at_ms' is missing, or is not a time.")
        yield found
