"""Store open Home tabs, with their settings and content.

Slack reports when a tab is opened, but not when it is closed. So a tab counts as open
for a while after its last use.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.sealing import Repository

OPEN_FOR = timedelta(minutes=10)
"""How long a tab is kept up to date after its last use."""

OPEN_MS = int(OPEN_FOR.total_seconds() * 1000)

_SHOWN = " shown"

T = TypeVar("T", bound=Record)


class HomeTab(Record):
    """One person's tab: time of the last use, and the settings as text.

    ``settings`` belong to the bot, such as a filter; they have no meaning here.
    """

    used_at_ms: int = 0
    settings: str = ""

    @property
    def until_ms(self) -> int:
        """Return the end of its updates."""
        return self.used_at_ms + OPEN_MS


class ShownTab(Record):
    """Content of a tab: Slack's hash of the view, and the bot's hash of the content."""

    view_hash: str = ""
    content: str = ""


class HomeTabStore(Repository):
    """The open Home tabs of all tenants."""

    async def used(self, keys: Keys, user: str, settings: str = "") -> HomeTab:
        """Record that a person uses their tab, and the settings."""
        key = keys.home_tabs
        now_ms = await self._conn.now_ms(key)
        tab = HomeTab(used_at_ms=now_ms, settings=settings)
        # A separate field: content written by other processes stays.
        await self._conn.transaction(
            ["HSET", key, user, tab.model_dump_json()], ["PEXPIRE", key, OPEN_MS]
        )
        return tab

    async def tab(self, keys: Keys, user: str) -> tuple[HomeTab, ShownTab, int]:
        """Return a person's tab, its content, and the store's clock."""
        found, now_ms = await self._conn.hash_now(keys.home_tabs)
        tab = _read(HomeTab, found.get(user))
        if now_ms >= tab.until_ms:
            tab = HomeTab()
        return tab, _read(ShownTab, found.get(user + _SHOWN)), now_ms

    async def open_tabs(self, keys: Keys, limit: int) -> list[str]:
        """Return users of recently used tabs, latest first; forget the others."""
        key = keys.home_tabs
        rows, now_ms = await self._conn.hash_now(key)
        used: dict[str, int] = {}
        over: list[str] = []
        for name, body in rows.items():
            if name.endswith(_SHOWN):
                continue
            tab = _read(HomeTab, body)
            if now_ms >= tab.until_ms:
                over += [name, name + _SHOWN]
            else:
                used[name] = tab.used_at_ms
        if over:
            await self._conn.command("HDEL", key, *over)
        return sorted(used, key=lambda one: (-used[one], one))[:limit]

    async def forget(self, keys: Keys, user: str) -> None:
        """Stop updating a person's tab until they use it again."""
        key = keys.home_tabs
        await self._conn.command("HDEL", key, user, user + _SHOWN)

    async def shown(self, keys: Keys, user: str, shown: ShownTab) -> None:
        """Record a tab's new content."""
        key = keys.home_tabs
        # With a lifetime: the key may have expired and been created anew.
        await self._conn.transaction(
            ["HSET", key, user + _SHOWN, shown.model_dump_json()],
            ["PEXPIRE", key, OPEN_MS],
        )


def _read(kind: type[T], body: bytes | None) -> T:
    return kind.model_validate_json(body) if body else kind()
