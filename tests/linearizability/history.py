"""The history to check: the operations of many processes on objects, with times.

An operation is a call and its return. Both have times of ``CLOCK_MONOTONIC``, which is
one clock for all processes of a machine. An operation without a return is open: its
process died, or its answer was "unknown". It may have taken effect at any time since
its call, may still do so, or never.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast

Value: TypeAlias = str | int | bool | tuple["Value", ...] | None

NEVER: Final = 1 << 62
"""When an open operation returns."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call on one object, and its return.

    Attributes:
        key: the object.
        name: the operation.
        given: its input.
        called: time of the call, in nanoseconds.
        returned: time of the return; `NEVER` for an open one.
        output: its return value; None for an open one.
    """

    key: str
    name: str
    given: tuple[Value, ...] = ()
    called: int = 0
    returned: int = NEVER
    output: Value = None

    @property
    def is_open(self) -> bool:
        """Return True if its effect is unknown."""
        return self.returned == NEVER


class Recorder:
    """Appends the operations of one process to a separate file.

    The call is in the file before the request, so that it is known if the process is
    killed.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._count = 0

    def called(self, key: str, name: str, *given: Value) -> int:
        """Note a call; return its number."""
        self._count += 1
        self._write(self._count, time.monotonic_ns(), key, name, given)
        return self._count

    def returned(self, number: int, output: Value) -> None:
        """Note what a call returned."""
        self._write(number, time.monotonic_ns(), output)

    def _write(self, *row: Value) -> None:
        os.write(self._file, json.dumps(row).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_history(path: Path) -> list[Operation]:
    """Return what a recorder noted; calls without a return are open."""
    found: dict[int, Operation] = {}
    for line in path.read_bytes().splitlines(keepends=True):
        # A process that was killed may have left a part of a line.
        if not line.endswith(b"\n"):
            continue
        number, at, *rest = json.loads(line)
        if len(rest) == 1:
            call = found[number]
            found[number] = Operation(
                call.key, call.name, call.given, call.called, at, _value(rest[0])
            )
        else:
            key, name, given = rest
            found[number] = Operation(key, name, tuple(map(_value, given)), at)
    return list(found.values())


def by_key(history: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Return the operations on each object.

    Linearizability is compositional: a history is linearizable when the part of each
    object is.
    """
    found = defaultdict[str, list[Operation]](list)
    for one in history:
        found[one.key].append(one)
    return dict(found)


def _value(read: object) -> Value:
    if isinstance(read, list):
        return tuple(map(_value, cast("list[object]", read)))
    assert read is None or isinstance(read, str | int)
    return read
