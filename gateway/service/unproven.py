"""Refuse a call whose decisions are not proven, and put its record aside."""

from __future__ import annotations

from dataclasses import dataclass

from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.security import SecurityEvent, SecurityKind
from keyturn.gateway.approvals.timing import AUTHORIZATION_LIFETIME
from keyturn.gateway.errors import BotKeyUnknown, NotVerified
from keyturn.gateway.protocol.states import ItemState
from keyturn.gateway.protocol.wire import Refused
from keyturn.gateway.store.quarantine import quarantine
from keyturn.gateway.store.store import Store

NOT_PROVEN = "It could not be proven that people decided this call, so it must not run."


@dataclass(frozen=True, slots=True)
class Unproven:
    """A call of which the record says what no signature does; ``told`` to its agent."""

    approval: Approval
    item: Item
    error: NotVerified
    told: str = NOT_PROVEN

    @property
    def is_unknown_key(self) -> bool:
        """Return whether the key that signed may only be missing in the settings."""
        return self.error.reason == SecurityKind.KEY_UNKNOWN


async def refuse_unproven(store: Store, found: Unproven) -> Refused:
    """Refuse a claim; where somebody changed the record, nothing of it runs any more.

    Raises:
        BotKeyUnknown: when the key may only be missing in the settings; the call runs
            once it is there, if that is in time.
    """
    approval = found.approval
    keys = store.keys_of_approval(approval.id)
    if keys is not None:
        await store.security.report(keys, _event(found))
    if found.is_unknown_key and not await _is_settled(store, found):
        raise BotKeyUnknown(
            f"The gateway does not know the key that signed the decision of "
            f"{approval.id!r}, so nothing ran. If it is the bot's, add it to "
            "'keys: {bot: […]}' of the gateway; `keyturn keys list` shows it there."
        )
    if keys is not None and not found.is_unknown_key:
        await quarantine(store.conn, keys, approval.id)
    return Refused(reason=found.told, state=found.item.state)


async def _is_settled(store: Store, found: Unproven) -> bool:
    """Return whether a call ended so long ago that nobody waits for a key any more.

    One that may still run waits as long as its authorization.
    """
    item = found.item
    if item.state in {ItemState.AUTHORIZED, ItemState.EXECUTING}:
        return False
    age_ms = await store.conn.now_ms("") - item.changed_at_ms
    return age_ms > AUTHORIZATION_LIFETIME.total_seconds() * 1000


def _event(found: Unproven) -> SecurityEvent:
    approval = found.approval
    return SecurityEvent(
        kind=(
            SecurityKind.KEY_UNKNOWN
            if found.is_unknown_key
            else SecurityKind.RECORD_FORGED
        ),
        tenant=approval.tenant,
        about="decision",
        agent=approval.agent,
        thread=approval.thread,
        approval=approval.id,
        name=found.error.reason,
    )
