"""Find out whether a server lets us write, and run what our scripts call.

A script that may not run one of its commands is stopped where it calls it: what it
wrote before stays, so a decision would be kept without its audit entry or its job.
That has to be known before anything is entrusted to the server.
"""

from __future__ import annotations

from typing import cast

from keyturn.gateway.store.connection import Connection, Reply, text
from keyturn.gateway.store.keys import Keys

CALLED = (
    "APPEND", "DECRBY", "DEL", "EXISTS", "GET", "HDEL", "HEXISTS", "HGET", "HGETALL",
    "HINCRBY", "HKEYS", "HLEN", "HMGET", "HSET", "HSETNX", "INCR", "INCRBY", "PERSIST",
    "PEXPIRE", "PEXPIREAT", "PTTL", "SADD", "SET", "SMEMBERS", "TIME", "XACK", "XADD",
    "XDEL", "XGROUP DELCONSUMER", "XINFO CONSUMERS", "XINFO GROUPS",
    "ZADD", "ZCARD", "ZCOUNT", "ZRANGEBYSCORE", "ZREM",
    "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE", "ZREVRANGE", "ZSCORE",
)  # fmt: skip
"""The commands that scripts call."""

# With a key of ours: a user may have the right to a command for other keys alone.
# Redis 8.6 takes no command with fewer or more arguments than it can have.
MISSING = """
local missing, unknown = {}, {}
if not redis.acl_check_cmd then return {missing, unknown} end
for at = 2, #ARGV do
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
  if not is_known then
    unknown[#unknown + 1] = ARGV[at]
  elseif not may then
    missing[#missing + 1] = ARGV[at]
  end
end
return {missing, unknown}
"""


async def permission_problems(conn: Connection) -> list[str]:
    """Return what the user of a connection may not do, with what to run.

    Raises:
        StoreUnavailable: when a server does not answer, or runs no script.
    """
    found = await conn.on_each_master("EVAL", MISSING, 0, Keys("any").members, *CALLED)
    each = [cast("list[list[Reply]]", one) for one in found.values()]
    missing, unknown = (
        sorted({text(name) for one in each for name in one[at]}) for at in (0, 1)
    )
    problems: list[str] = []
    if unknown:
        problems.append(
            f"The server does not know {', '.join(unknown)}, which the scripts of "
            "Keyturn call, so decisions would be kept in part; take 'rename-command' "
            "of these out of its configuration, and restart it."
        )
    if not missing:
        return problems
    allowed = " ".join(f"+{one.lower().replace(' ', '|')}" for one in missing)
    why = (
        "The user of KEYTURN_REDIS_URL may not run all that the scripts of Keyturn "
        "call on its keys, so decisions would be kept in part"
    )
    return [*problems, f"{why}; run: ACL SETUSER <user> ~tk:* {allowed}"]


async def ensure_writable(conn: Connection, keys: Keys) -> None:
    """Write nothing, as a write: it fails where the server takes no writes.

    Raises:
        StoreUnavailable: says why, and what to do.
    """
    # XX: there is no such key, so nothing is set.
    await conn.keep(["SET", f"{keys.members}:none", "", "XX"])
