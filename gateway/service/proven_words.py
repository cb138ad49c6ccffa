"""Tell an agent only what people are proven to have said.

What runs is verified at its claim (`twokey.gateway.service.receipts`). This is about
what runs nothing and is read by a model: a rejection, an answer, a withdrawal, an edit,
and what people found out about an execution in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.signed_decisions import (
    check_edit,
    check_end,
    check_finding,
)
from twokey.gateway.errors import NotVerified
from twokey.gateway.protocol.public_keys import PublicKey
from twokey.gateway.service.unproven import Unproven, refuse_unproven
from twokey.gateway.store.store import Store
from twokey.gateway.trust.key_folder import Role

NOT_TOLD = "What the gateway's record says of this call could not be proven."

Check = Callable[[Approval, Item, Sequence[PublicKey]], None]


def unproven_end(
    store: Store, approval: Approval, item: Item, *checks: Check
) -> Unproven | None:
    """Return what is not proven of what a record says; None when all of it is.

    Args:
        store: whose keys are used; without keys nothing is verified.
        approval: the record.
        item: of it, that nobody can claim.
        checks: which words; without any, all that an agent can be told.
    """
    keyring = store.keyring
    if keyring is None:
        return None
    keys = keyring.verifying(Role.BOT)
    try:
        for check in checks or (check_end, check_edit, check_finding):
            check(approval, item, keys)
    except NotVerified as error:
        told = f"{NOT_TOLD} Look before you ask again whether it ran."
        return Unproven(approval, item, error, told)
    return None


async def are_proven(store: Store, approval: Approval, item: Item) -> bool:
    """Return whether people said what a record says; report it where they did not.

    Where somebody changed the record, it is put aside as well.

    Raises:
        BotKeyUnknown: when the key may only be missing in the settings.
    """
    found = unproven_end(store, approval, item)
    if found is not None:
        await refuse_unproven(store, found)
    return found is None


async def is_edit_proven(store: Store, approval: Approval, item: Item) -> bool:
    """Return whether a person made the edit of a call that has been claimed.

    Its claim verified it, under a key that may have been retired since.
    """
    found = unproven_end(store, approval, item, check_edit)
    if found is None or found.is_unknown_key:
        return True
    await refuse_unproven(store, found)
    return False
