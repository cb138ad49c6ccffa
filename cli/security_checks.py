"""Check for `twokey doctor` whether somebody changed the store in the last week."""

from __future__ import annotations

from collections import Counter

from twokey.cli.store_access import open_configured
from twokey.gateway.approvals.security import SecurityKind
from twokey.gateway.config import Settings
from twokey.gateway.errors import SettingsError
from twokey.gateway.service.security_events import security_events

_PERIOD_MS = 7 * 86_400_000


async def check_security(settings: Settings) -> str:
    """Return that nothing was found of which people are told.

    Raises:
        SettingsError: names what was found.
        StoreUnavailable: when the store does not answer.
    """
    found: Counter[str] = Counter()
    async with open_configured(settings) as store:
        keys = store.keys_of_tenant(settings.tenant)
        since_ms = max(0, await store.conn.now_ms(keys.audit) - _PERIOD_MS)
        events = security_events(store, settings.tenant, since_ms=since_ms)
        async for event in events:
            found[event.reason] += 1
    told = {one.value for one in SecurityKind if one.is_announced} & found.keys()
    if told:
        named = ", ".join(f"{kind} ({found[kind]})" for kind in sorted(told))
        raise SettingsError(
            f"in the last week the store held what Twokey did not write: {named}; "
            "see 'twokey security', and find out who can write to the store."
        )
    return "nothing was forged or replayed in the last week"
