"""Tell an agent only what people are proven to have said.

What runs is verified at its claim (`keyturn.gateway.service.receipts`). This is about
what runs nothing and is read by a model: a rejection, an answer, a withdrawal, an edit,
and what people found out about an execution in doubt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Vote
from keyturn.gateway.approvals.signed_decisions import (
    Word,
    check,
    check_edit,
    check_end,
    check_finding,
    word_of_observation,
    word_of_vote,
)
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.service.unproven import Unproven, refuse_unproven
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Role

logger = logging.getLogger(__name__)

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


def proven_words(store: Store, approval: Approval, item: Item) -> Item:
    """Return an item without what its people are not proven to have written beside it.

    Why they approved, and what each of them found out: none of it decides here, so the
    rest is told.
    """
    keyring = store.keyring
    if keyring is None:
        return item
    keys = keyring.verifying(Role.BOT)
    votes = tuple(
        one
        if not one.reason or _is_signed(word_of_vote(approval, item, one), one, keys)
        else one.with_(reason="")
        for one in item.votes
    )
    observations = tuple(
        one
        for one in item.observations
        if _is_signed(word_of_observation(approval, item, one), one.vote, keys)
    )
    if votes == item.votes and observations == item.observations:
        return item
    logger.error("words.unproven item=%s", item.id)
    return item.with_(votes=votes, observations=observations)


def _is_signed(word: Word, vote: Vote, keys: Sequence[PublicKey]) -> bool:
    try:
        check(word, vote.signed, keys)
    except NotVerified:
        return False
    return True


async def is_edit_proven(store: Store, approval: Approval, item: Item) -> bool:
    """Return whether a person made the edit of a call that has been claimed.

    Its claim verified it, under a key that may have been retired since.
    """
    found = unproven_end(store, approval, item, check_edit)
    if found is None or found.is_unknown_key:
        return True
    await refuse_unproven(store, found)
    return False
