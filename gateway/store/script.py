"""Read a Lua script from its file, and run it by its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from gateway.errors import LeaseLost
from gateway.store.connection import Argument, Connection, Reply, text
from gateway.store.fences import current

_FOLDER = Path(__file__).parent / "lua"
_SHEBANG = "#!lua\n"


class Script:
    """One Lua file with the shared prelude behind its first line.

    Args:
        name: of the file.
        is_fenced: refuse to run under a lease that its holder has lost.
    """

    def __init__(self, name: str, *, is_fenced: bool = False) -> None:
        body = _read(name)
        self.name = name
        self.header = body
        self._plain = _Source(_SHEBANG + _read("prelude") + _without_shebang(body))
        self._fenced = None
        if is_fenced:
            before = _SHEBANG + _read("prelude") + _read("fence")
            self._fenced = _Source(before + _without_shebang(body))

    async def run(
        self, conn: Connection, keys: Sequence[str], args: Sequence[Argument]
    ) -> list[Reply]:
        """Run it; the first element of the answer is the outcome's word.

        Raises:
            StoreUnavailable: when the server did not answer or refused it.
            LeaseLost: the caller's lease is another's by now; nothing was written.
        """
        lease = current()
        if self._fenced is None or lease is None:
            return await self._plain.run(conn, keys, args)
        lease.check()
        args = [*args, str(lease.fence)]
        reply = await self._fenced.run(conn, [*keys, lease.key], args)
        if text(reply[0]) == "fenced":
            raise LeaseLost
        return reply


class _Source:
    """A text that is run by its digest."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    async def run(
        self, conn: Connection, keys: Sequence[str], args: Sequence[Argument]
    ) -> list[Reply]:
        return await conn.evalsha(self._sha, self._source, keys, args)


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _without_shebang(body: str) -> str:
    return body.removeprefix(_SHEBANG)
