"""Break how callers share a connection to the store."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MULTIPLEXED = "gateway/store/multiplexed.py"
NODE = "gateway/store/node.py"
SHARING = "tests/store/test_multiplexed.py"
BREAKING = "tests/store/test_broken_connections.py"

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
)
