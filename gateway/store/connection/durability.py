"""Check that the servers of a store do not lose acknowledged writes.

Measured with kill -9 and failovers: ``everysec`` loses thousands of acknowledged
writes, a failover without ``min-replicas-to-write`` loses most of them, and a server
with an eviction policy deletes arbitrary keys. Each rule below prevents one such loss.

The checks include the Sentinels, the nodes of a cluster, and the user's permissions. A
script stops at a forbidden command, and its earlier writes stay: a decision would be
stored without its audit entry or its job.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool
from redis.exceptions import RedisError, ResponseError

from keyturn.gateway.errors import StoreUnavailable, UnsafeStore
from keyturn.gateway.store.connection.connection import (
    Connection,
    Reply,
    milliseconds,
    number,
    text,
)
from keyturn.gateway.store.connection.servers import (
    ASK_S,
    SENTINEL,
    Options,
    Server,
    StoreAddress,
    store_address,
)
from keyturn.gateway.store.keys import Keys

OLDEST = {"redis": 7, "valkey": 8}
MAX_CLOCK_OFFSET_S = 5.0
_NEEDED = {
    "appendonly": ("yes", "a restart loses every approval"),
    "appendfsync": ("always", "a crash loses acknowledged decisions"),
    "no-appendfsync-on-rewrite": (
        "no",
        "a crash while it rewrites its AOF loses acknowledged decisions",
    ),
    "maxmemory-policy": ("noeviction", "a full memory throws approvals away"),
}
"""Required value of each setting, and the reason."""

_SETTINGS = (*_NEEDED, "min-replicas-to-write", "io-threads")
_THREADS_ANSWER_EARLY = {"redis": (8, 2), "valkey": (8, 0)}
"""First release in which I/O threads reply before the AOF is written.

Measured by the order of system calls: every second reply of Redis 8.2.3 and 8.6.3, one
in some thousands of Valkey 9.1.2, none of Redis 7.0.15 and 8.0.6.
"""

_FEWEST = 3

CALLED = (
    "APPEND", "DECRBY", "DEL", "EXISTS", "GET", "HDEL", "HEXISTS", "HGET", "HGETALL",
    "HINCRBY", "HKEYS", "HMGET", "HSET", "HSETNX", "INCR", "INCRBY", "PERSIST",
    "PEXPIRE", "PEXPIREAT", "PTTL", "SET", "TIME", "XACK", "XADD", "XDEL", "ZADD",
    "ZCARD", "ZCOUNT", "ZRANGE", "ZRANGEBYSCORE", "ZREM",
    "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE", "ZREVRANGE", "ZSCORE",
)  # fmt: skip
"""Commands called by scripts."""

# With one of Keyturn's keys, since permissions may be limited to other keys. Redis 8.6
# rejects a wrong number of arguments.
MISSING = """
local missing = {}
for at = 2, redis.acl_check_cmd and #ARGV or 0 do
  local name, of = string.match(ARGV[at], '^(%S+) ?(.*)$')
  local words = of == '' and {name} or {name, of}
  local is_known, may
  for _ = 1, 6 do
    words[#words + 1] = ARGV[1]
    is_known, may = pcall(redis.acl_check_cmd, unpack(words))
    if is_known then break end
  end
  if not is_known and of == '' then -- TIME takes nothing
    is_known, may = pcall(redis.acl_check_cmd, name)
  end
  if not is_known or not may then missing[#missing + 1] = ARGV[at] end
end
return missing
"""


@dataclass(frozen=True)
class EngineFacts:
    """Facts that a server reports.

    Attributes:
        software: ``redis``, ``valkey``, or another name.
        version: version in the server's notation.
        settings: values of CONFIG GET; None if the server forbids reading them.
        role: ``master``, or ``slave`` for a replica.
        replicas: number of connected replicas.
        clock_offset_s: the server's clock minus this process's clock.
        place: its address, in a store of several servers.
        has_sentinels: True if Sentinels replace it when it fails.
    """

    software: str
    version: str
    settings: Mapping[str, str] | None = field(default_factory=dict[str, str])
    role: str = "master"
    replicas: int = 0
    clock_offset_s: float = 0.0
    place: str = ""
    has_sentinels: bool = False

    @property
    def needed_replicas(self) -> int:
        """Return the number of replicas that each write requires."""
        waits = (self.settings or {}).get("min-replicas-to-write", "0")
        return int(waits) if waits.isdecimal() else 0

    @property
    def release(self) -> tuple[int, int]:
        """Return the first two numbers of the version; zeros if there are none."""
        found = re.match(r"(\d+)(?:\.(\d+))?", self.version)
        return (int(found[1]), int(found[2] or 0)) if found else (0, 0)

    @property
    def name(self) -> str:
        """Return name and version, for people."""
        return f"{self.software} {self.version}"


def durability_problems(facts: EngineFacts) -> list[str]:
    """Return why this server must not store approvals, each with the command to run."""
    found = _problems(facts)
    if not facts.place:
        return found
    # Keep the type, so that temporary problems stay distinguishable.
    return [type(one)(f"{facts.place}: {one}") for one in found]


def _problems(facts: EngineFacts) -> list[str]:
    oldest = OLDEST.get(facts.software)
    # Unknown software is refused: its losses were never measured.
    if oldest is None or facts.release[0] < oldest:
        use = "use Redis 7 or newer, or Valkey 8 or newer"
        return [f"The server is {facts.name}; {use}."]
    problems: list[str] = []
    if facts.role != "master":
        why = "The server is a replica; set KEYTURN_REDIS_URL to its master."
        problems.append(Passing(why))
    if facts.settings is None:
        problems.append(
            "CONFIG GET is forbidden here, so nobody can tell whether this server "
            "keeps what it acknowledges; allow it (ACL SETUSER <user> +config|get) or "
            "use a server of your own: many managed ones sync once a second."
        )
    else:
        problems += _setting_problems(facts, facts.settings)
        problems += _replica_problems(facts)
    if abs(facts.clock_offset_s) >= MAX_CLOCK_OFFSET_S:
        problems.append(
            f"The server's clock is {facts.clock_offset_s:+.1f} s from this machine's, "
            f"{MAX_CLOCK_OFFSET_S:.0f} s are allowed; switch on NTP on both."
        )
    return problems


def _setting_problems(facts: EngineFacts, settings: Mapping[str, str]) -> list[str]:
    problems = [
        _problem(name, settings.get(name, ""), value, why)
        for name, (value, why) in _NEEDED.items()
        if settings.get(name) != value
    ]
    threads = settings.get("io-threads", "1")
    if threads != "1" and facts.release >= _THREADS_ANSWER_EARLY[facts.software]:
        problems.append(
            f"io-threads is {threads!r}: it may then answer before its AOF is written, "
            "and a crash loses acknowledged decisions; set it to 1 in the "
            "configuration of the server, and restart it."
        )
    return problems


def _replica_problems(facts: EngineFacts) -> list[str]:
    # Without replicas there is no failover that could lose writes.
    if (facts.replicas or facts.has_sentinels) and not facts.needed_replicas:
        waits = (facts.settings or {}).get("min-replicas-to-write", "0")
        why = "a fail-over loses acknowledged decisions"
        return [_problem("min-replicas-to-write", waits, "1", why)]
    if facts.replicas < facts.needed_replicas:
        return [
            Passing(
                f"min-replicas-to-write is {facts.needed_replicas} and "
                f"{facts.replicas} replicas are connected, so every write is refused; "
                "start a replica, and see that it reaches its master."
            )
        ]
    return []


def _problem(name: str, value: str, needed: str, why: str) -> str:
    return f"{name} is {value!r}: {why}; run: CONFIG SET {name} {needed}"


async def ensure_durable(
    conn: Connection, *, insecure_dev: bool = False
) -> EngineFacts:
    """Check a store before it is used; return the facts of its server.

    If its servers require replicas, the connection waits for them from now on.

    Args:
        conn: an open connection.
        insecure_dev: accept a server that may lose decisions; for development only.

    Raises:
        UnsafeStore: names every problem with the command that solves it.
        StoreUnavailable: when the server does not answer.
    """
    every = await read_facts(conn)
    problems = [one for facts in every for one in durability_problems(facts)]
    problems += await topology_problems(conn.url)
    problems += await permission_problems(conn)
    # One is enough: a failover promotes the replica with the most data.
    conn.confirmed_by = int(any(facts.needed_replicas for facts in every))
    if problems and not insecure_dev:
        lines = "\n  - ".join(problems)
        raise UnsafeStore(
            f"This store could lose acknowledged decisions:\n  - {lines}\n"
            "Make settings last with CONFIG REWRITE, or start with --insecure-dev to "
            "try things out on it anyway.",
            can_pass=all(isinstance(one, Passing) for one in problems),
        )
    return every[0]


async def server_info(conn: Connection) -> dict[str, str]:
    """Return a server's INFO, which also works while the server loads its data.

    Raises:
        StoreUnavailable: when it does not answer.
    """
    return _mapping(await conn.command("INFO"))


async def read_facts(conn: Connection) -> list[EngineFacts]:
    """Read the facts of each master of a store.

    Raises:
        StoreUnavailable: when one does not answer.
    """
    infos = await conn.on_each_master("INFO")
    settings = await _settings(conn)
    before = _now()
    times = await conn.on_each_master("TIME")
    # The replies were made between the two readings of the local clock.
    ours = (before + _now()) / 2
    # A master replaced in between is skipped; the next start checks again.
    return [
        _facts(
            _mapping(info),
            settings.get(place) if settings is not None else None,
            milliseconds(times[place]) / 1000 - ours,
            place=place if len(infos) > 1 else "",
            has_sentinels=urlsplit(conn.url).scheme in SENTINEL,
        )
        for place, info in infos.items()
        if place in times
    ]


def _facts(
    info: Mapping[str, str],
    settings: Mapping[str, str] | None,
    offset_s: float,
    *,
    place: str,
    has_sentinels: bool,
) -> EngineFacts:
    software = "redis"
    for name in ("valkey", "dragonfly", "keydb"):
        # They also report a redis_version, for compatibility.
        if f"{name}_version" in info or info.get("server_name") == name:
            software = name
    return EngineFacts(
        software=software,
        version=info.get(f"{software}_version", info.get("redis_version", "?")),
        settings=settings,
        role=info.get("role", "?"),
        replicas=number(info.get("connected_slaves", "0")),
        clock_offset_s=offset_s,
        place=place,
        has_sentinels=has_sentinels,
    )


async def _settings(conn: Connection) -> dict[str, dict[str, str]] | None:
    try:
        found = await conn.on_each_master("CONFIG GET", *_SETTINGS)
    except StoreUnavailable as error:
        if isinstance(error.__cause__, ResponseError):
            # NOPERM, or a managed server without the command.
            return None
        raise
    return {place: _mapping(reply) for place, reply in found.items()}


def _mapping(reply: Reply) -> dict[str, str]:
    pairs = cast("dict[object, object]", reply)
    return {_text(key): _text(value) for key, value in pairs.items()}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _now() -> float:
    return time.time()  # noqa: TID251 - compares two clocks, decides nothing


class Passing(str):
    """A problem that may be temporary, such as a failover in progress."""

    __slots__ = ()


async def topology_problems(url: str) -> list[str]:
    """Return why a store of several servers could stop or lose writes.

    Temporary problems are `Passing`.
    """
    address = store_address(url)
    if address.master:
        return await _sentinel_problems(address)
    if address.places:
        return await _cluster_problems(address)
    return []


async def _sentinel_problems(found: StoreAddress) -> list[str]:
    words = "SENTINEL", "CKQUORUM", found.master
    problems: list[str] = []
    for place, answer in await _answers(found.sentinel_options, found.places, *words):
        if isinstance(answer, ResponseError):
            # NOQUORUM: too few Sentinels see each other to replace a master.
            why = (
                f"The Sentinels cannot replace the master {found.master!r} ({answer}); "
                "start more of them, so that a majority sees it."
            )
            problems.append(Passing(why))
        elif isinstance(answer, OSError):
            why = f"The Sentinel {place} does not answer ({answer})"
            remedy = "start it, or take it out of KEYTURN_REDIS_URL"
            problems.append(Passing(f"{why}; {remedy}."))
    if len(found.places) < _FEWEST:
        problems.append(
            f"KEYTURN_REDIS_URL lists {len(found.places)} Sentinels; list three or "
            "more, on machines of their own: fewer cannot agree when one is away."
        )
    return list(dict.fromkeys(problems))


async def _cluster_problems(found: StoreAddress) -> list[str]:
    answers = await _answers(found.options, found.places, "CLUSTER", "INFO")
    # An unreachable node is skipped: other nodes report its slots.
    said = [(place, one) for place, one in answers if isinstance(one, bytes)]
    if not said:
        why = "No node of the cluster in KEYTURN_REDIS_URL answers; start them."
        return [Passing(why)]
    broken = [place for place, one in said if b"cluster_state:ok" not in one]
    return [
        Passing(
            f"The cluster is not whole, says {place}, so some tenants have no store; "
            f"see: redis-cli --cluster check {place}"
        )
        for place in broken[:1]
    ]


async def _answers(
    options: Options, places: Sequence[tuple[str, int]], *words: str
) -> list[tuple[str, Reply]]:
    """Ask each server; return its address, and its reply as in `_asked`."""
    replies = await asyncio.gather(*(_asked(options, one, *words) for one in places))
    names = (f"{host}:{port}" for host, port in places)
    return list(zip(names, replies, strict=True))


async def _asked(options: Options, place: tuple[str, int], *words: str) -> Reply:
    """Return a server's reply; its error reply, or an OSError without a reply."""
    host, port = place
    server = Server(partial(ConnectionPool, **{**options, "host": host, "port": port}))
    try:
        deadline = asyncio.get_running_loop().time() + ASK_S
        [reply] = await server.ask([words], deadline)
    except (RedisError, OSError) as error:
        return OSError(str(error))
    else:
        return reply
    finally:
        await server.close()


async def permission_problems(conn: Connection) -> list[str]:
    """Return the commands that a connection's user lacks, with the fix.

    Raises:
        StoreUnavailable: when a server does not answer, or cannot run scripts.
    """
    found = await conn.on_each_master("EVAL", MISSING, 0, Keys("any").members, *CALLED)
    every = cast("list[list[Reply]]", list(found.values()))
    missing = sorted({text(name) for names in every for name in names})
    if not missing:
        return []
    allowed = " ".join(f"+{one.lower().replace(' ', '|')}" for one in missing)
    why = (
        "The user of KEYTURN_REDIS_URL may not run all that the scripts of Keyturn "
        "call on its keys, or the server has renamed it, so decisions would be kept "
        "in part"
    )
    return [f"{why}; run: ACL SETUSER <user> ~tk:* {allowed}"]


async def ensure_writable(conn: Connection, keys: Keys) -> None:
    """Send a write command without effect; fails if the server refuses writes.

    Raises:
        StoreUnavailable: names the reason and the next step.
    """
    # XX: the key does not exist, so nothing is set.
    await conn.keep(["SET", f"{keys.members}:none", "", "XX"])
