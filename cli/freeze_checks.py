"""Check for `twokey doctor` whether each freeze is in every shard of a split tenant."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from twokey.cli.store_access import open_configured
from twokey.gateway.config import Settings
from twokey.gateway.errors import SettingsError, StoreUnavailable
from twokey.gateway.service.split_freezes import (
    FreezesSeen,
    IncompleteFreeze,
    SplitFreezes,
)
from twokey.gateway.store.connection import number
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store


async def check_freezes(settings: Settings) -> str:
    """Return how many freezes are in every shard.

    Raises:
        SettingsError: names those that are not, or may not be, and says what to do.
        StoreUnavailable: when no shard answers.
    """
    async with _opened(settings) as store:
        seen = await SplitFreezes(store, tenant=settings.tenant).look()
    problems = [_incomplete(one, seen) for one in seen.incomplete]
    if seen.away:
        problems.append(_away(seen))
    if problems:
        raise SettingsError(" ".join(problems))
    return f"{len(seen.freezes)} freezes and pauses; each freeze is in every shard"


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[Store]:
    """Open the store whether or not all of its servers answer.

    The other checks need all of them. A freeze is most likely to be incomplete while
    one is away.
    """
    url = settings.store_url
    if url is None:
        async with open_configured(settings, insecure_dev=True) as store:
            yield store
        return
    secrets, split = settings.secret_keys(), [settings.tenant]
    store = Store(url, secrets=secrets, shards=settings.shards, split=split)
    try:
        kept = settings.shards
        with suppress(StoreUnavailable):
            kept = number(await store.conn.command("GET", Keys("s0").shards))
        if kept and kept != settings.shards:
            raise SettingsError(
                f"not looked at: the store has 'shards: {kept}', and it is "
                f"{settings.shards} here."
            )
        yield store
    finally:
        await store.close()


def _incomplete(freeze: IncompleteFreeze, seen: FreezesSeen) -> str:
    lacking = f"{', '.join(freeze.lacking)} of {seen.parts} shards lack"
    said = (
        f"{freeze.name!r} is frozen, and {lacking} the freeze, so calls of the agents "
        "there may start."
        if freeze.is_set
        else f"{freeze.name!r} is unfrozen, and {lacking} that, so calls of the agents "
        "there do not start."
    )
    return (
        f"{said} A gateway of this tenant that runs completes it within seconds: start "
        "one, or see 'freeze.incomplete' in its log."
    )


def _away(seen: FreezesSeen) -> str:
    names = [one.name for one in seen.freezes if not one.is_pause]
    known = f" ({', '.join(names)})" if names else ""
    return (
        f"{', '.join(seen.away)} of {seen.parts} shards do not answer, so what is "
        f"frozen{known} may not be frozen there, and what is frozen there is not "
        "known; start the servers, and keep a gateway running, which then completes "
        "each freeze within seconds."
    )
