"""Record attempts in the ledger, then write the changes that use them to Redis."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from keyturn.gateway.approvals.executing import Attempt, begun_attempts
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.background import begun, waited_for
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.atomic_write import Loaded
from keyturn.gateway.store.ledger import Ledger

T = TypeVar("T")


async def after_spending(
    ledger: Ledger,
    attempts: Sequence[Attempt],
    unspent: Sequence[Attempt],
    now_ms: int,
    write: Callable[[], Awaitable[T]],
) -> T:
    """Write to Redis after the attempts are recorded; see `Ledger.spend`.

    Args:
        ledger: the ledger.
        attempts: attempts to record.
        unspent: attempts that must still be unused.
        now_ms: the store's clock.
        write: returns a false value if it wrote nothing.
    """

    async def both() -> T:
        await ledger.spend(attempts, unspent, now_ms=now_ms)
        is_used = False
        try:
            written = await write()
            is_used = bool(written)
        finally:
            if not is_used:
                await ledger.take_back(attempts, now_ms=now_ms)
        return written

    # Not interrupted by cancellation: between the two writes, the call would end up in
    # doubt.
    return await waited_for(begun(both()))


async def spend_again(
    ledger: Ledger | None,
    loaded: Loaded,
    standing: Approval | None,
    only: Item | None = None,
) -> None:
    """Record the attempts of running calls again, with the same owners.

    For a claim that was written although its process got no reply. ``standing`` is the
    standing approval that covers the call.

    Raises:
        AlreadySpent: there is another attempt: an older record was restored.
    """
    approval = loaded.approval
    attempts = [
        attempt
        for one in (approval.items if only is None else (only,))
        if one.state is ItemState.EXECUTING
        for attempt in begun_attempts(approval, one, standing)
    ]
    if ledger is not None and attempts:
        await ledger.spend(attempts, now_ms=loaded.now_ms, again=True)
