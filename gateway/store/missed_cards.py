"""Find outdated cards that no event will update, because the reader is new.

Cards are drawn from events. A new or dropped outbox reader has missed earlier events.
So it checks once each unfinished approval, and each ended one with known messages,
against its card: the card of an ended approval must not ask people any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.store.connection.connection import Argument, number
from keyturn.gateway.store.connection.listed_members import approvals_by_score
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.store import Store


async def mark_missed(store: Store, keys: Keys) -> int:
    """List a tenant's missing or outdated cards for drawing; return their number.

    Raises:
        StoreUnavailable: when the store does not answer; some may be listed already.
    """
    found = set[str]()
    for index, is_missed in ((keys.expiry, _asks), (keys.messages_due, _is_shown)):
        async for ids in approvals_by_score(store.conn, keys, index):
            left = [one for one in ids if one not in found]
            behind = await _behind(store, keys, left)
            for loaded in await store.approvals.load_each(behind):
                approval = loaded.approval
                is_theirs = approval.tenant == keys.tenant
                if is_theirs and await is_missed(store, keys, approval):
                    found.add(approval.id)
    for one in found:
        await store.cards.mark_outdated(keys, one)
    return len(found)


async def _asks(store: Store, keys: Keys, approval: Approval) -> bool:
    """Return whether an unfinished approval needs a card, or has one."""
    # Approvals without reviewers have a notification, posted by its event only.
    is_asked = any(item.is_pending for item in approval.items)
    return is_asked or await store.cards.place(keys, approval.id) is not None


async def _is_shown(store: Store, keys: Keys, approval: Approval) -> bool:
    """Return whether an approval has a card that was not redacted."""
    posted = await store.posted_messages.read(keys, approval.id)
    ended = posted.ended
    # Drawing would restore the redacted text.
    if ended is not None and (ended.is_erased or ended.redacted_rev):
        return False
    return await store.cards.place(keys, approval.id) is not None


async def _behind(store: Store, keys: Keys, ids: Sequence[str]) -> list[str]:
    """Return approvals whose card is missing or shows an older revision."""
    commands: list[list[Argument]] = []
    for one in ids:
        commands.append(["HGET", keys.head(one), "rev"])
        commands.append(["HGET", keys.card(one), "rev"])
    revs = await store.conn.transaction(*commands)
    pairs = zip(ids, revs[::2], revs[1::2], strict=True)
    return [one for one, is_now, shown in pairs if number(shown) < number(is_now)]
