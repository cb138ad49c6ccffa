"""Load Lua scripts from files, and call them by the names in their headers.

The header of a script is its signature: one line for each of KEYS and ARGV, with its
name, type and unit. A name whose index ends with ``..`` takes a sequence. A line
``-- include NAME.lua`` puts the functions of that file before the script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from twokey.gateway.errors import LeaseLost
from twokey.gateway.protocol.records import Record
from twokey.gateway.store.connection import Argument, Connection, Reply, text
from twokey.gateway.store.fences import compared

FOLDER = Path(__file__).parent / "lua"
_SHEBANG = "#!lua\n"
_INCLUDE = re.compile(r"^-- include (\w+)\.lua$", re.MULTILINE)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
_AT_TOP = re.compile(r"^(?=local )", re.MULTILINE)
_DEFINED = re.compile(r"local (?:function )?(\w+(?:, \w+)*)")


class Script:
    """One Lua file with the shared functions behind its first line.

    Args:
        name: of the file.
        is_fenced: refuse to run under a lease that its holder has lost.
        writes: False when it only reads; see `Connection.evalsha`.

    Attributes:
        keys: names of KEYS, in their order.
        args: names of ARGV, in their order.
    """

    def __init__(
        self, name: str, *, is_fenced: bool = False, writes: bool = True
    ) -> None:
        body = _read(name)
        self.name = name
        self._writes = writes
        self.keys, self.args = (_names(body, array) for array in ("KEYS", "ARGV"))
        self._names = frozenset((*self.keys, *self.args))
        included = "".join(map(_read, _INCLUDE.findall(body)))
        shared = _read("prelude") + _read("lifetimes") + included
        rest = body.removeprefix(_SHEBANG)
        self._plain = _SHEBANG + with_called(shared, rest)
        fenced = _read("fence") + rest
        self._fenced = _SHEBANG + with_called(shared, fenced) if is_fenced else ""

    def prepared(
        self, last: str, /, **values: Argument | Sequence[Argument]
    ) -> Prepared:
        """Return it with all values but one argument, for who runs it often.

        Raises:
            TypeError: when they are not those that the header names, or it is fenced.
        """
        wrong = {*values, last} ^ self._names
        if wrong or last in values or self._fenced:
            raise TypeError(f"{self.name}.lua cannot be prepared but for {last!r}")
        keys = cast("list[str]", _flat(self.keys, values))
        place = self.args.index(last)
        before, after = (
            _flat(names, values)
            for names in (self.args[:place], self.args[place + 1 :])
        )
        return Prepared(self._plain, keys, before, after, self._writes)

    def with_keys(self, **keys: str) -> Keyed:
        """Return it with its keys, for who passes all of ARGV in their order.

        Raises:
            TypeError: when they are not those that the header names, or it is fenced.
        """
        if keys.keys() != {*self.keys} or self._fenced:
            raise TypeError(f"{self.name}.lua cannot be run with {sorted(keys)}")
        return Keyed(self._plain, [keys[name] for name in self.keys], self._writes)

    async def __call__(
        self, conn: Connection, /, **values: Argument | Sequence[Argument]
    ) -> list[Reply]:
        """Run it; the first element of the answer is the outcome's word.

        Args:
            conn: the server to run it on.
            values: one for each name in the script's header.

        Raises:
            TypeError: when the values are not those that the header names.
            StoreUnavailable: when the server did not answer or refused it.
            LeaseLost: another holder has the lease now; nothing was written.
        """
        # Checked here, because Lua would read an argument that is missing as nil.
        if values.keys() != self._names:
            wrong = sorted(values.keys() ^ self._names)
            raise TypeError(f"{self.name}.lua does not take exactly {wrong}")
        keys = cast("list[str]", _flat(self.keys, values))
        args = _flat(self.args, values)
        leases = compared() if self._fenced else []
        if not leases:
            return await conn.evalsha(self._plain, keys, args, writes=self._writes)
        keys.extend(key for key, _ in leases)
        args.extend(holder for _, holder in leases)
        reply = await conn.evalsha(self._fenced, keys, [*args, len(leases)])
        if text(reply[0]) == "fenced":
            raise LeaseLost
        return reply


def with_called(shared: str, rest: str) -> str:
    """Return what a script runs, behind what it uses of what is shared.

    The server makes each function and constant anew at each run, used or not.
    """
    code = _COMMENT.sub("", rest)
    kept: list[str] = []
    # From the last one: a function of Lua knows only what stands before it.
    for part in reversed(_AT_TOP.split(_COMMENT.sub("", shared))):
        found = _DEFINED.match(part)
        names = found[1].replace(", ", "|") if found else ""
        if found is None or re.search(rf"\b(?:{names})\b", code):
            kept.append(part)
            code += part
    return "".join(reversed(kept)) + rest


@dataclass(frozen=True, slots=True)
class Prepared:
    """A script with all of its values but one, checked and in their order."""

    _source: str
    _keys: Sequence[str]
    _before: Sequence[Argument]
    _after: Sequence[Argument]
    _writes: bool

    async def __call__(self, conn: Connection, value: Argument) -> list[Reply]:
        """Run it as a `Script` with this value."""
        args = [*self._before, value, *self._after]
        return await conn.evalsha(self._source, self._keys, args, writes=self._writes)


@dataclass(frozen=True)
class Keyed:
    """A script with its keys, checked and in their order."""

    _source: str
    _keys: Sequence[str]
    _writes: bool

    async def __call__(self, conn: Connection, args: Sequence[Argument]) -> list[Reply]:
        """Run it as a `Script` with these for ARGV."""
        return await conn.evalsha(self._source, self._keys, args, writes=self._writes)


def texts(records: Iterable[Record]) -> str:
    """Return records as scripts read them: an array of texts."""
    return json.dumps([record.model_dump_json() for record in records])


def _read(name: str) -> str:
    return (FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _names(body: str, array: str) -> tuple[str, ...]:
    return tuple(re.findall(rf"^-- {array}\[\d+(?:\.\.)?\] +(\w+)", body, re.MULTILINE))


def _flat(
    names: Iterable[str], values: Mapping[str, Argument | Sequence[Argument]]
) -> list[Argument]:
    found: list[Argument] = []
    for name in names:
        value = values[name]
        # By the very type first: nearly all are texts.
        if type(value) is str:
            found.append(value)
        elif isinstance(value, (str, bytes, int)):
            # The client refuses a bool, and a str is a sequence, too: so both are told
            # apart here.
            found.append(int(value) if isinstance(value, bool) else value)
        else:
            found.extend(value)
    return found
