"""A connector that dies at a chosen point: before or after one of its requests.

Everything a connector knows is in the server and in the gateway, so the death of its
process is the end of its tasks. Another connector has to go on from there.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any


class Death:
    """Counts the requests of a connector and kills it at one of them.

    Args:
        at: the number of the point; each request has one before and one after it.
    """

    def __init__(self, at: int) -> None:
        self.left = at
        self.names = list[str]()

    @property
    def has_come(self) -> bool:
        """Return whether the connector is dead."""
        return self.left < 0

    def pass_by(self, name: str) -> None:
        """Pass one point, or die there: also all that would follow."""
        self.left -= 1
        self.names.append(name)
        if self.has_come:
            raise asyncio.CancelledError(name)


class Mortal:
    """A host or a gate, for a connector that dies."""

    def __init__(self, of: Any, death: Death) -> None:
        self._of, self._death = of, death

    def __getattr__(self, name: str) -> Any:
        """Return an attribute; a method passes two points."""
        found = getattr(self._of, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def asked(*args: Any, **given: Any) -> Any:
            self._death.pass_by(f"before {name}")
            reply = await found(*args, **given)
            self._death.pass_by(f"after {name}")
            return reply

        return asked


class Meddled:
    """A host whose method is preceded by something else, once."""

    def __init__(
        self, of: Any, method: str, first: Callable[[], Awaitable[object]]
    ) -> None:
        self._of, self._method, self._first = of, method, first
        self._is_done = False

    def __getattr__(self, name: str) -> Any:
        """Return an attribute."""
        found = getattr(self._of, name)
        if name != self._method or self._is_done:
            return found

        async def asked(*args: Any, **given: Any) -> Any:
            self._is_done = True
            await self._first()
            return await found(*args, **given)

        return asked
