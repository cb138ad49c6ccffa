"""Check for `twokey doctor` whether every webhook arrives."""

from __future__ import annotations

from twokey.cli.store_access import open_configured
from twokey.gateway.config import Settings
from twokey.gateway.errors import SettingsError
from twokey.gateway.store.webhooks import WebhookQueue
from twokey.gateway.webhooks.posting import trust


async def check_webhooks(settings: Settings) -> str:
    """Return how many targets there are, of which none fails.

    Raises:
        SettingsError: names those that fail, messages that were given up, or a file of
            certificates that cannot be used, with which no gateway starts.
        StoreUnavailable: when the store does not answer.
    """
    failing: list[str] = []
    trust(settings.webhooks.certificates)
    async with open_configured(settings) as store:
        for name in settings.webhooks.targets:
            queue = WebhookQueue(store, tenant=settings.tenant, target=name)
            one = await queue.standing()
            if one.failing_ms is not None or one.dead:
                why = f", last with {one.error!r}" if one.error else ""
                failing.append(f"{name} ({one.waiting} wait, {one.dead} given up{why})")
    if failing:
        raise SettingsError(
            f"messages do not arrive: {'; '.join(failing)}. 'twokey webhooks test "
            "NAME' tries one, 'twokey webhooks retry NAME' sends again what was given "
            "up."
        )
    return f"targets: {len(settings.webhooks.targets)}; no message has failed"
