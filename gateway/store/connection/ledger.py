"""The ledger of used attempts, outside of Redis.

An attacker with write access to Redis can restore an older record with a valid seal. So
a change first records its attempts in a database next to the checkpoints. An attempt
that is recorded there is refused, regardless of the state in Redis.

If the write to Redis fails, the attempt is taken back, since its caller runs nothing.
A process that dies between the two writes leaves a recorded attempt that is never used.
No other process gets that attempt: the call is in doubt when the claim would have
ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keyturn.gateway.approvals.executing import Attempt


class Ledger(Protocol):
    """Records attempts, each one once."""

    async def spend(
        self,
        attempts: Sequence[Attempt],
        unspent: Sequence[Attempt] = (),
        *,
        now_ms: int,
        again: bool = False,
    ) -> None:
        """Record all of these attempts, or none.

        Args:
            attempts: attempts to record; one without an owner may exist already.
            unspent: attempts that must still be unused; they stay unused.
            now_ms: the store's clock.
            again: the same owner may have recorded the attempt already.

        Raises:
            AlreadySpent: an attempt was recorded before; nothing was written.
            LeaseLost: another process has the lease; nothing was written.
            StoreUnavailable: when the result is unknown.
        """

    async def take_back(self, attempts: Sequence[Attempt], *, now_ms: int) -> None:
        """Release unused attempts that were recorded at ``now_ms``.

        Attempts recorded with ``again`` stay, since they were granted.
        """

    async def forget(self, now_ms: int) -> None:
        """Delete attempts that no record can use any more."""
