"""Tell places of cards that a bot registered from those that somebody else wrote."""

from __future__ import annotations

from dataclasses import dataclass

from twokey.gateway.store.card_copies import CopyStore
from twokey.gateway.store.cards import CardPlace, CardStore
from twokey.gateway.store.keys import Keys, shard_of_run
from twokey.gateway.store.posted_messages import PostedMessageStore


@dataclass(frozen=True, slots=True)
class OwnPlaces:
    """Checks places before the bot changes what stands there, or answers it.

    Attributes:
        cards: knows the places.
        copies: seals what an older version registered.
        posted: has a sealed note of each message about an approval. Versions that seal
            no places write these notes, so what they registered is sealed here.
        keys: of the shard.
        tenant: whose cards.
    """

    cards: CardStore
    copies: CopyStore
    posted: PostedMessageStore
    keys: Keys
    tenant: str

    async def of(self, shown: str, place: CardPlace) -> CardPlace | None:
        """Return a place without what no bot registered; None when that is all of it.

        Args:
            shown: the approval, outage or collected card that has the place.
            place: as the store has it.
        """
        at = (place.channel, place.ts)
        unsealed = {
            user: one
            for user, one in place.copies.items()
            if one.ts and not one.is_sealed
        }
        if place.is_sealed and not unsealed:
            return place
        noted = set((await self.posted.read(self.keys, self.tenant, shown)).places)
        if not place.is_sealed and not await self._is_own(shown, at, "", noted):
            if shard_of_run(shown.partition(".")[0]):
                # An outage: it is no approval, whose card would then be missing.
                await self.cards.forget_place(self.keys, shown)
            else:
                await self.cards.forget_message(self.keys, self.tenant, shown, at)
            return None
        forged = [
            user
            for user, one in unsealed.items()
            if not await self._is_own(shown, (one.channel, one.ts), user, noted)
        ]
        # Passed over: a copy that somebody else wrote is not drawn, and none is sent.
        copies = {
            user: one.with_(refused="forged") if user in forged else one
            for user, one in place.copies.items()
        }
        return place.with_(copies=copies, is_sealed=True)

    async def _is_own(
        self, shown: str, at: tuple[str, str], user: str, noted: set[tuple[str, str]]
    ) -> bool:
        if at in noted:
            await self.copies.confirm(self.keys, shown, at, user)
            return True
        await self.cards.seals.refuse(self.keys, self.tenant, shown, at)
        return False
