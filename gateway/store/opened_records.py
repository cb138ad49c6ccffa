"""Read an approval as it was opened, to answer its turn again."""

from __future__ import annotations

from typing import cast

from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import CorruptRecord
from twokey.gateway.store import codec
from twokey.gateway.store.connection import fields
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.record_seals import Stored
from twokey.gateway.store.store import Store


async def read_opened(store: Store, keys: Keys, approval_id: str) -> Approval:
    """Return an approval with its items as the policy decided on them first.

    Raises:
        NewerRecord: when a newer version wrote it.
        ForgedRecord: when it is not as it was sealed; it is quarantined by that.
        CorruptRecord: when it is damaged, or a part of it is gone.
    """
    head, pinned = await store.conn.transaction(
        ["HGETALL", keys.head(approval_id)], ["GET", keys.pinned(approval_id)]
    )
    if pinned is None:
        raise CorruptRecord(approval_id)
    stored = Stored(fields(head), cast("bytes", pinned))
    codec.check_format(approval_id, stored.head)
    schemas = await store.approvals.schemas.read(keys, codec.digests(stored.head))
    async with store.approvals.forged.noticed(keys):
        return codec.as_opened(approval_id, stored, schemas, store.approvals.seals)
