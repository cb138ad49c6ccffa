"""Multiply one pending approval inside the store.

To fill a store with a million approvals, the keys of one real approval are written
repeatedly under other ids, inside the server.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from keyturn.gateway.store.connection.connection import (
    Argument,
    Connection,
    Reply,
    number,
)

EARLIER = Path(__file__).parent / "records_881def4.json"
"""The keys of the same approval as written by git commit 881def4."""

_AT_ONCE = 500
_OWN_HEX = re.compile(rb"(?::|_)([0-9a-f]{8}|[0-9a-f]{32}|[0-9a-f]{64})$")
_OF_DAY = re.compile(rb":ids:[0-9]+:[0-9a-f]$")
_OF_ONE = re.compile(rb"^tk:\{[^}]+\}:(a|b|p|turn|run|open|tm|short):")

Command = tuple[bytes, ...]

# Repeats each command for every number. The hexadecimal digits of one approval are
# replaced by those of another, and so are the bytes that they encode.
_MULTIPLY = """
local function raw(hex)
  local function byte(two) return string.char(tonumber(two, 16)) end
  return (string.gsub(hex, '..', byte))
end
local swapped
function swapped(text, own, as)
  local first, last = string.find(text, own, 1, true)
  if not first then return text end
  return string.sub(text, 1, first - 1) .. as
    .. swapped(string.sub(text, last + 1), own, as)
end
local owns = cjson.decode(ARGV[3])
local digits = #owns
for place = 1, digits do
  if #owns[place] == 32 then owns[#owns + 1] = raw(owns[place]) end
end
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local as = {}
  for place = 1, digits do
    local own = owns[place]
    as[place] = string.sub(redis.sha1hex(own .. i) .. redis.sha1hex(i .. own), 1, #own)
  end
  for place = 1, digits do
    if #owns[place] == 32 then as[#as + 1] = raw(as[place]) end
  end
  local at = 4
  while at <= #ARGV do
    local words = {}
    for word = 1, tonumber(ARGV[at]) do
      local text = ARGV[at + word]
      for place, own in ipairs(owns) do text = swapped(text, own, as[place]) end
      words[word] = text
    end
    redis.call(unpack(words))
    at = at + 1 + tonumber(ARGV[at])
  end
end
return 1
"""


async def keys_in(conn: Connection) -> list[bytes]:
    """Return every key of a small store."""
    return cast("list[bytes]", await conn.command("KEYS", "*"))


async def commands_of(conn: Connection) -> list[Command]:
    """Return the commands that write the contents of a store with one approval."""
    found: list[Command] = []
    for key in sorted(await keys_in(conn)):
        kind = _word(await conn.command("TYPE", key))
        read, write = _READ[kind]
        if _OF_DAY.search(key):
            # Each approval appends itself to the list of its day.
            write = b"APPEND"
        reply = await conn.command(*(one or key for one in read))
        found += [(write, key, *row) for row in _rows(kind, reply)]
        left_ms = number(await conn.command("PTTL", key))
        if left_ms > 0:
            found.append((b"PEXPIRE", key, str(left_ms).encode()))
    return found


_READ: Mapping[bytes, tuple[tuple[str, ...], bytes]] = {
    b"hash": (("HGETALL", ""), b"HSET"),
    b"string": (("GET", ""), b"SET"),
    b"set": (("SMEMBERS", ""), b"SADD"),
    b"zset": (("ZRANGE", "", "0", "-1", "WITHSCORES"), b"ZADD"),
    b"stream": (("XRANGE", "", "-", "+"), b"XADD"),
}


def _rows(kind: bytes, reply: Reply) -> list[Command]:
    if kind == b"string":
        return [(cast("bytes", reply),)]
    if kind == b"stream":
        rows = cast("list[tuple[bytes, object]]", reply)
        return [(b"*", *_flat(values)) for _, values in rows]
    flat = _flat(reply)
    if kind == b"zset":
        return [(score, member) for member, score in _pairs(flat)]
    return [tuple(flat)]


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _flat(reply: object) -> list[bytes]:
    if isinstance(reply, dict):
        pairs = cast("dict[bytes, bytes]", reply).items()
        return [one for pair in pairs for one in pair]
    return [*cast("list[bytes]", reply)]


def _word(reply: Reply) -> bytes:
    return reply if isinstance(reply, bytes) else str(reply).encode()


async def multiply(conn: Connection, commands: Sequence[Command], count: int) -> None:
    """Write an approval this many times, each time under other ids."""
    digits = sorted(
        {
            found[1]
            for _, key, *_ in commands
            if _OF_ONE.match(key) and (found := _OWN_HEX.search(key))
        },
        # The longer one first: a short id is part of the approval's id.
        key=len,
        reverse=True,
    )
    flat: list[Argument] = []
    for words in commands:
        flat += [len(words), *words]
    own = json.dumps([one.decode() for one in digits])
    for first in range(0, count, _AT_ONCE):
        last = min(first + _AT_ONCE, count) - 1
        await conn.command("EVAL", _MULTIPLY, 0, first, last, own, *flat)


def earlier_commands() -> list[Command]:
    """Return the commands that write an approval of commit 881def4."""
    rows = cast("list[list[str]]", json.loads(EARLIER.read_text(encoding="utf-8")))
    return [tuple(base64.b64decode(word) for word in row) for row in rows]
