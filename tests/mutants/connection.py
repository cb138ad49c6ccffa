"""Break how callers share a connection to the store."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SERVERS = "gateway/store/servers.py"
SHARING = "tests/store/test_commands.py"
BREAKING = "tests/store/test_broken_connections.py"
AT_SENTINELS = "tests/store/test_sentinel_connection.py"
IN_CLUSTERS = "tests/store/test_cluster_connection.py"
REPLACED = "tests/store/test_replaced_servers.py"

UNAVAILABLE = "gateway/store/connection.py"
REFUSING = "tests/store/test_refused_writes.py"

CONNECTION_TABLE = (
    Mutant(
        "connection: a connection that owes a reply is not used again",
        SERVERS,
        "        if len(replies) < count:\n",
        "        if False:\n",
        BREAKING,
    ),
    Mutant(
        "connection: who waits for a turn has a deadline",
        SERVERS,
        "async with asyncio.timeout_at(deadline), limit:",
        "async with limit, asyncio.timeout_at(deadline):",
        BREAKING,
    ),
    Mutant(
        "connection: what was sent may have been done",
        SERVERS,
        "                    is_sent = True\n",
        "",
        BREAKING,
    ),
    Mutant(
        "connection: after a close nothing is opened any more",
        SERVERS,
        "            raise RedisConnectionError(_CLOSED)\n        pool = self",
        "            pass\n        pool = self",
        SHARING,
    ),
    Mutant(
        "connection: a fork opens a connection of its own",
        "gateway/store/connection.py",
        "if self._process != os.getpid():",
        "if False:",
        BREAKING,
    ),
    Mutant(
        "sentinel: a master that was replaced is left, though it only hangs",
        SERVERS,
        "        if before and before != await",
        "        if False and before != await",
        AT_SENTINELS,
    ),
    Mutant(
        "sentinel: a server that is no master is not used",
        SERVERS,
        """cast("list[Reply]", role)[0] != b"master":""",
        """cast("list[Reply]", role)[0] is None:""",
        AT_SENTINELS,
    ),
    Mutant(
        "cluster: a master that was replaced is left, though it only hangs",
        SERVERS,
        "            await self._servers.pop(name).close()\n",
        "            self._servers.pop(name)\n",
        IN_CLUSTERS,
    ),
    Mutant(
        "cluster: a key that has moved already is asked for at its next master",
        SERVERS,
        'node, before = self._named(error), [("ASKING",)]',
        "node, before = self._named(error), ()",
        IN_CLUSTERS,
    ),
    Mutant(
        "a server that may have been replaced is left",
        SERVERS,
        "            self.drop()\n            self._open_at",
        "            self._open_at",
        REPLACED,
    ),
    Mutant(
        "a store that takes no writes is told from one that is away",
        UNAVAILABLE,
        "return isinstance(error.__cause__, ResponseError)",
        "return False",
        REFUSING,
    ),
    Mutant(
        "a script that was stopped in its middle is not said to be unrecorded",
        UNAVAILABLE,
        "if writes and _IN_A_SCRIPT in str(error):",
        "if False:",
        REFUSING,
    ),
    Mutant(
        "a user who may not run what scripts call is refused",
        "gateway/store/durability.py",
        "    if not missing:",
        "    if True:",
        REFUSING,
    ),
)
