"""Find the cards that no event will bring up to date: their reader is new.

What a card shows follows from events. A reader of the outbox that was dropped, or is
new, has not seen those that are gone; so each approval with something still to happen
is compared once with what its card shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from twokey.gateway.store.connection import Argument, Reply, number
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.sorted_pages import pages_by_score
from twokey.gateway.store.store import Store


async def mark_missed(store: Store, keys: Keys, tenant: str) -> int:
    """List a tenant's cards that are missing or old, to be drawn; return how many.

    Raises:
        StoreUnavailable: when the store does not answer; some may be listed already.
    """
    found = 0
    async for page in pages_by_score(store.conn, keys.expiry):
        ids = await store.members.approvals(keys, keys.expiry, page)
        behind = await _behind(store, keys, ids)
        for loaded in await store.approvals.load_each(behind):
            approval = loaded.approval
            if approval.tenant != tenant:
                continue
            # What asks nobody has a notification, and only its event posts that.
            is_asked = any(item.is_pending for item in approval.items)
            if is_asked or await store.cards.place(keys, approval.id) is not None:
                await store.cards.mark_outdated(keys, tenant, approval.id)
                found += 1
    return found


async def _behind(store: Store, keys: Keys, ids: Sequence[str]) -> list[str]:
    """Return those whose card shows an older rev than the record, or none."""
    commands: list[list[Argument]] = []
    for one in ids:
        commands.append(["HGET", keys.head(one), "rev"])
        commands.append(["HGET", keys.card(one), "rev"])
    revs = await store.conn.transaction(*commands)
    pairs = zip(ids, revs[::2], revs[1::2], strict=True)
    return [one for one, is_now, shown in pairs if _rev(shown) < _rev(is_now)]


def _rev(stored: Reply) -> int:
    # One that somebody else wrote is no rev: the card is drawn again.
    with suppress(ValueError):
        return number(stored)
    return -1
