"""Load Lua scripts from files, and call them by the names in their headers.

The header of a script is its signature: one line for each of KEYS and ARGV, with its
name, type and unit. A name whose index ends with ``..`` takes a sequence, and one of
type ``json`` a value, or its JSON as text. A line
``-- include NAME.lua`` puts the functions of that file before the script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

from pydantic_core import to_json

from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.store.connection.connection import (
    Argument,
    Connection,
    Reply,
    text,
)
from keyturn.gateway.store.scripts.fences import compared

FOLDER = Path(__file__).parent / "lua"
_SHEBANG = "#!lua\n"
_INCLUDE = re.compile(r"^-- include (\w+)\.lua$", re.MULTILINE)


class Script:
    """A Lua file, with shared functions inserted after its first line.

    Args:
        name: name of the file.
        is_fenced: refuse to run under a lost lease.
        writes: False for a script that only reads; see `Connection.evalsha`.
    """

    def __init__(
        self, name: str, *, is_fenced: bool = False, writes: bool = True
    ) -> None:
        self.name = name
        self._is_fenced, self._writes = is_fenced, writes

    # Read at the first use: reading all scripts would add 0.2 s to the start of every
    # program.
    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Return the names of KEYS in order."""
        return tuple(_types(_read(self.name), "KEYS"))

    @cached_property
    def args(self) -> tuple[str, ...]:
        """Return the names of ARGV in order."""
        return tuple(self._types)

    @cached_property
    def _types(self) -> dict[str, str]:
        return _types(_read(self.name), "ARGV")

    @cached_property
    def _plain(self) -> str:
        return self._with_shared("")

    @cached_property
    def _fenced(self) -> str:
        return self._with_shared(_read("fence"))

    def _with_shared(self, before: str) -> str:
        body = _read(self.name)
        shared = map(_read, ("prelude", *_INCLUDE.findall(body)))
        return "".join([_SHEBANG, *shared, before, body.removeprefix(_SHEBANG)])

    async def __call__(self, conn: Connection, /, **values: object) -> list[Reply]:
        """Run the script; the first element of the reply is the outcome.

        Args:
            conn: the server to run it on.
            values: one for each name in the script's header.

        Raises:
            TypeError: when the values do not match the header.
            StoreUnavailable: when the server did not answer or refused it.
            LeaseLost: another process has the lease now; nothing was written.
        """
        # Checked here, because Lua reads a missing argument as nil.
        if wrong := sorted(values.keys() ^ {*self.keys, *self.args}):
            raise TypeError(f"{self.name}.lua does not take exactly {wrong}")
        keys = cast("list[str]", _flat(self.keys, values))
        for name, kind in self._types.items():
            if kind == "json" and not isinstance(values[name], (str, bytes)):
                values[name] = to_json(values[name])
        args = _flat(self.args, values)
        leases = compared() if self._is_fenced else []
        if not leases:
            return await conn.evalsha(self._plain, keys, args, writes=self._writes)
        keys.extend(key for key, _ in leases)
        args.extend(holder for _, holder in leases)
        reply = await conn.evalsha(self._fenced, keys, [*args, len(leases)])
        if text(reply[0]) == "fenced":
            raise LeaseLost
        return reply


def _read(name: str) -> str:
    return (FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _types(body: str, array: str) -> dict[str, str]:
    """Return the types of the keys or arguments in a header, by name."""
    row = rf"^-- {array}\[\d+(?:\.\.)?\] +(\w+) +(\w+)"
    return dict(re.findall(row, body, re.MULTILINE))


def _flat(names: Iterable[str], values: Mapping[str, object]) -> list[Argument]:
    found: list[Argument] = []
    for name in names:
        value = values[name]
        # The exact type first: nearly all are strings.
        if type(value) is str:
            found.append(value)
        elif isinstance(value, (str, bytes, int)):
            # The client rejects bool, and a str is a sequence as well, so handle both
            # here.
            found.append(int(value) if isinstance(value, bool) else value)
        else:
            found.extend(cast("Sequence[Argument]", value))
    return found
