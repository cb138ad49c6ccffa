"""The ledger of spent attempts, which is not in Redis.

Whoever can write to Redis can put back an older record, with its seal. So the attempts
that a change spends are written to a database beside the checkpoints first: an attempt
that is spent there is refused, whatever Redis holds.

A claim that is not known to be written gives its attempt back: its caller is not told
to run anything. A process that dies between both writes leaves an attempt that is spent
and not used. Nobody gets it then: the call is in doubt once a claim would have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keyturn.gateway.approvals.spending import Attempt


class Ledger(Protocol):
    """Where attempts are spent, once."""

    async def spend(
        self,
        attempts: Sequence[Attempt],
        unspent: Sequence[Attempt] = (),
        *,
        now_ms: int,
        again: bool = False,
    ) -> None:
        """Spend all of these attempts, or none.

        Args:
            attempts: to spend; an attempt without an owner may be spent already.
            unspent: must not be spent, and stay so.
            now_ms: the store's clock.
            again: an attempt may be spent by the same owner already.

        Raises:
            AlreadySpent: one of them is spent; nothing was written.
            LeaseLost: another holder has the lease; nothing was written.
            StoreUnavailable: it is not known to be written.
        """

    async def take_back(self, attempts: Sequence[Attempt], *, now_ms: int) -> None:
        """Let attempts be claimed again that were spent at ``now_ms`` and are not used.

        An attempt that was spent ``again`` is not taken back: it was granted by that.
        """

    async def forget(self, now_ms: int) -> None:
        """Delete what no record can use any more."""
