"""Break how callers share a connection to the store."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MULTIPLEXED = "gateway/store/multiplexed.py"
NODE = "gateway/store/node.py"
SHARING = "tests/store/test_multiplexed.py"
BREAKING = "tests/store/test_broken_connections.py"

SENTINEL = "gateway/store/sentinel.py"
CLUSTER = "gateway/store/cluster.py"
AT_SENTINELS = "tests/store/test_sentinel_connection.py"
IN_CLUSTERS = "tests/store/test_cluster_connection.py"

UNAVAILABLE = "gateway/store/unavailable.py"
REFUSING = "tests/store/test_refused_writes.py"

CONNECTION_TABLE = (
    Mutant(
        "connection: the reply of who gave up is taken out of the order",
        MULTIPLEXED,
        "        request = self._sent[0]\n",
        "        while len(self._sent) > 1 and self._sent[0].result.done():\n"
        "            self._sent.popleft()\n"
        "        request = self._sent[0]\n",
        SHARING,
    ),
    Mutant(
        "connection: what nobody waits for is not sent",
        MULTIPLEXED,
        "if not request.result.done() and (packed := _packed(request)):",
        "if packed := _packed(request):",
        SHARING,
    ),
    Mutant(
        "connection: only so many requests are unanswered",
        MULTIPLEXED,
        "            len(self._sent) < MAX_UNANSWERED\n",
        "            bool(MAX_UNANSWERED)\n",
        BREAKING,
    ),
    Mutant(
        "connection: only so many bytes are unanswered",
        MULTIPLEXED,
        "            and self._unanswered_bytes < MAX_UNANSWERED_BYTES\n",
        "            and bool(MAX_UNANSWERED_BYTES)\n",
        BREAKING,
    ),
    Mutant(
        "connection: a silent server is given up, however short the calls",
        MULTIPLEXED,
        "if self._sent and now >= self._heard_at + self._silence_s:",
        "if False:",
        BREAKING,
    ),
    Mutant(
        "connection: who waits for a turn has a deadline",
        MULTIPLEXED,
        "return chain(self._sent, self._unsent)",
        "return iter(self._sent)",
        BREAKING,
    ),
    Mutant(
        "connection: after a reply that is none nothing is matched any more",
        MULTIPLEXED,
        '            raise InvalidResponse(f"unasked {reply!r}"[:200])\n',
        "            return\n",
        BREAKING,
    ),
    Mutant(
        "connection: a reader that waits has a connection of its own",
        NODE,
        "        if any(map(blocks, commands)):\n",
        "        if False:\n",
        SHARING,
    ),
    Mutant(
        "connection: a reader that gave up takes nothing",
        NODE,
        "                self._drop(connection)\n                raise\n",
        "                raise\n",
        SHARING,
    ),
    Mutant(
        "connection: after a close nothing is opened any more",
        NODE,
        "        if self._is_closed:\n",
        "        if False:\n",
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
        SENTINEL,
        "        if self._place and place != self._place:\n",
        "        if False:\n",
        AT_SENTINELS,
    ),
    Mutant(
        "sentinel: a server that is no master is not used",
        SENTINEL,
        """cast("list[Reply]", role)[0] != b"master":""",
        """cast("list[Reply]", role)[0] is None:""",
        AT_SENTINELS,
    ),
    Mutant(
        "cluster: a master that was replaced is left, though it only hangs",
        CLUSTER,
        "        await _close_others(self._nodes, masters)\n",
        "",
        IN_CLUSTERS,
    ),
    Mutant(
        "cluster: a key that has moved already is asked for at its next master",
        CLUSTER,
        'place, before = _named(error, place), [("ASKING",)]',
        "place, before = _named(error, place), ()",
        IN_CLUSTERS,
    ),
    Mutant(
        "sentinel: a master that became a replica is left at once",
        SENTINEL,
        "        if any(isinstance(reply, ReadOnlyError) for reply in replies):\n",
        "        if False:\n",
        AT_SENTINELS,
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
        "gateway/store/permissions.py",
        "    if not missing:",
        "    if True:",
        REFUSING,
    ),
)
