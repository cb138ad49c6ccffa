"""Write changes to Redis behind the attempts that they spend in the ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.spending import Attempt, begun_attempts
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
    """Write to Redis once attempts are spent; see `Ledger.spend`.

    Args:
        ledger: where they are spent.
        attempts: to spend.
        unspent: must not be spent.
        now_ms: the store's clock.
        write: its answer is false where nothing was written.
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

    # To the end, also when the caller is cancelled: cut off in between, the call would
    # be in doubt.
    return await waited_for(begun(both()))


async def spend_again(
    ledger: Ledger | None,
    loaded: Loaded,
    standing: Approval | None,
    only: Item | None = None,
) -> None:
    """Spend the attempts of calls that run, as they were spent already.

    For a claim that was written, of which its process was not told at once.
    ``standing`` is the standing approval that covers the call.

    Raises:
        AlreadySpent: another attempt was begun; a record was put back.
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
