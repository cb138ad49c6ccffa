"""Read many approvals for a list, of which some may be unreadable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from twokey.gateway.errors import CorruptRecord, NewerRecord
from twokey.gateway.failures import log_failure
from twokey.gateway.store.atomic_write import Loaded

logger = logging.getLogger(__name__)

AT_ONCE = 20
"""How many readings are sent together. One after the other, a list would take as many
round trips to the server as it has rows; more at once would hold up clicks."""

Load = Callable[[str], Awaitable[Loaded | None]]


async def read_each(
    load: Load,
    approval_ids: Iterable[str],
    *,
    skips_newer: bool,
    newer: set[str] | None = None,
) -> list[Loaded]:
    """Return those approvals that are there, in order, without corrupt ones.

    Args:
        load: reads one.
        approval_ids: of the approvals.
        skips_newer: leave out those that a newer version wrote.
        newer: gets the ids of those that were left out for that.

    Raises:
        NewerRecord: a newer version wrote one, and those are not left out.
    """

    async def sound(approval_id: str) -> Loaded | None:
        try:
            return await load(approval_id)
        # Before CorruptRecord in order and in meaning: such a record is sound, and must
        # neither be quarantined nor hide the others of a list.
        except NewerRecord as error:
            if not skips_newer:
                raise
            if newer is not None:
                newer.add(approval_id)
            logger.warning("record.newer %s", error)
        except CorruptRecord as error:
            log_failure(logger, error, "record.corrupt")
        return None

    wanted, found = [*approval_ids], list[Loaded]()
    for start in range(0, len(wanted), AT_ONCE):
        read = await asyncio.gather(*map(sound, wanted[start : start + AT_ONCE]))
        found += [one for one in read if one is not None]
    return found
