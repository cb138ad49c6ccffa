"""Open pending approvals of a known size, and multiply one inside the store.

The arguments are 674 bytes of JSON: an order, a person, a few numbers, and a reason in
random words, which compresses no better than prose. To fill a store with a million
approvals, the keys of one real approval are written repeatedly under other ids, inside
the server.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from bench.clicks import POLICY
from bench.stats import NotMeasured
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.connection.connection import (
    Argument,
    Connection,
    Reply,
    number,
)
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.store import Store
from keyturn.sandbox.json_types import JsonObject

ARGS_BYTES = 674
TENANT, AGENT = "default", "support"
EARLIER = Path(__file__).parent / "records_881def4.json"
"""The keys of the same approval as written by git commit 881def4."""

_AGENT_HOLDS = 5000
_AT_ONCE = 500
_WORDS = (
    "the envelope was lost on its way carrier confirmed customer asked twice for "
    "refund parcel damaged by rain shop agreed to pay back full price including "
    "shipping express order number delivered late neighbour signed"
)
_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string", "description": "The order."},
        "customer": {"type": "string"},
        "amount": {"type": "number"},
        "reason": {"type": "string"},
        "items": {"type": "array", "items": {"type": "string"}},
        "notify": {"type": "boolean"},
    },
    "required": ["order_id", "amount"],
}
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


def arguments(number: int) -> JsonObject:
    """Return the arguments of one call, `ARGS_BYTES` of JSON."""
    chance = random.Random(number)  # noqa: S311 - the same words in every run
    args: JsonObject = {
        "order_id": f"{78000 + number}",
        "customer": f"Maria{number} Lopez <maria{number}@example.com>",
        "amount": chance.randint(1, 100_000) / 100,
        "reason": "",
        "items": [f"SKU-{chance.randint(10_000, 99_999)}" for _ in range(4)],
        "notify": True,
    }
    missing = ARGS_BYTES - len(_json(args))
    words = " ".join(chance.choice(_WORDS.split()) for _ in range(missing))
    return {**args, "reason": words[:missing]}


def _json(value: JsonObject) -> str:
    return json.dumps(value, separators=(",", ":"))


async def open_one(
    store: Store, agents: AgentService, number: int, *, thread: str = ""
) -> None:
    """Open an approval, in a separate thread unless one is named."""
    keys = store.keys_of_tenant(TENANT)
    agent = AGENT if thread else f"support-{number // _AGENT_HOLDS}"
    thread = thread or f"thread-{number}"
    facts = ThreadFacts(requester=Person(team="T0SANDBOX", user="U0DAN", name="Dan"))
    await store.threads.change(keys, agent, thread, lambda _: facts, why="aside")
    call = ProposedCall(
        tool="process_refund", tool_call_id=f"call-{number}", args=arguments(number)
    )
    ref = TurnRef(agent=agent, thread=thread, message_id=f"message-{number}")
    turn = Turn(ref=ref, calls=(call,), schemas={"process_refund": _SCHEMA})
    [verdict] = await agents.submit(turn)
    if not verdict.item_id:
        raise NotMeasured(f"The call does not wait for people: {verdict.reason}")


def agents_of(store: Store) -> AgentService:
    """Return the service to which agents submit."""
    return AgentService(store, lambda: POLICY)


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
        reply = await conn.command(*(key if one == b"" else one for one in read))
        found += [(write, key, *row) for row in _rows(kind, reply)]
        left_ms = number(await conn.command("PTTL", key))
        if left_ms > 0:
            found.append((b"PEXPIRE", key, str(left_ms).encode()))
    return found


_READ: Mapping[bytes, tuple[Command, bytes]] = {
    b"hash": ((b"HGETALL", b""), b"HSET"),
    b"string": ((b"GET", b""), b"SET"),
    b"set": ((b"SMEMBERS", b""), b"SADD"),
    b"zset": ((b"ZRANGE", b"", b"0", b"-1", b"WITHSCORES"), b"ZADD"),
    b"stream": ((b"XRANGE", b"", b"-", b"+"), b"XADD"),
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


def as_json(commands: Sequence[Command]) -> str:
    """Return the contents of `EARLIER` for these commands."""
    rows = [[base64.b64encode(word).decode() for word in row] for row in commands]
    return json.dumps(rows, indent=1) + "\n"
