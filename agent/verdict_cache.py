"""Cache the gateway's verdicts and edits in this process.

A process that writes checkpoints can rewrite the agent's state, but not this cache.
What is not cached is asked of the gateway again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from threading import Lock

from twokey.gateway.clock import now_s
from twokey.gateway.protocol import edits
from twokey.gateway.protocol.records import EditRecord, RunRef
from twokey.gateway.protocol.wire import TurnRef, Verdict

CACHE_SIZE = 512
"""How many turns this process remembers the verdicts of."""
CACHE_AGE_S = 5.0
"""How long a verdict of this process counts before the gateway is asked again."""
CACHED_EDITS = 8192
"""How many edits this process remembers the hash of."""


_Turn = tuple[str, str, str, str, RunRef | None]


class VerdictCache:
    """Verdicts and edits that came from the gateway; the first in is the first out.

    Putting the same again does not make it newer: the cache is large enough, and what
    was dropped is asked of the gateway.
    """

    def __init__(self) -> None:
        self._turns: OrderedDict[_Turn, tuple[float, dict[str, Verdict]]] = (
            OrderedDict()
        )
        self._edits: OrderedDict[tuple[RunRef, str], None] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """Return how many turns are remembered."""
        return len(self._turns)

    def put(self, ref: TurnRef, verdicts: Mapping[str, Verdict]) -> None:
        """Remember the verdicts on a turn."""
        with self._lock:
            # A copy: what the caller does with its own must not change a cached
            # verdict.
            known = (now_s(), dict(verdicts))
            self._turns[_turn(ref)] = known
            # The new one stays: with it, there is always a first one to look at.
            while len(self._turns) > 1 and self._is_first_of_no_use():
                self._turns.popitem(last=False)

    def _is_first_of_no_use(self) -> bool:
        """Return whether the turn that was put first is outdated, or one too many."""
        at, _ = next(iter(self._turns.values()))
        return len(self._turns) > CACHE_SIZE or now_s() - at >= CACHE_AGE_S

    def get(self, ref: TurnRef) -> dict[str, Verdict] | None:
        """Return the verdicts on a turn; None when this process did not submit it.

        None too when it did so a while ago: the policy may have changed since.
        """
        with self._lock:
            at, known = self._turns.get(_turn(ref), (0.0, None))
        # Not the wall clock: set back, it would keep an old verdict valid.
        return known if now_s() - at < CACHE_AGE_S else None

    def put_edits(self, run_ref: RunRef, records: Iterable[EditRecord]) -> None:
        """Remember edits that the gateway reported or confirmed in a run."""
        hashes = [edits.edit_hash(record) for record in records]
        with self._lock:
            # The hash, not the item: state could name other changes under the id of a
            # real edit.
            for each in hashes:
                self._edits[run_ref, each] = None
            while len(self._edits) > CACHED_EDITS:
                self._edits.popitem(last=False)

    def has_edit(self, run_ref: RunRef, edit_hash: str) -> bool:
        """Return whether the gateway reported or confirmed this very edit in a run."""
        with self._lock:
            return (run_ref, edit_hash) in self._edits


def _turn(ref: TurnRef) -> _Turn:
    return ref.agent, ref.thread, ref.ns, ref.message_id, ref.nested_in
