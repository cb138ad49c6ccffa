"""Read a Lua script from its file, and run it by its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from gateway.store.connection import Argument, Connection, Reply

_FOLDER = Path(__file__).parent / "lua"
_SHEBANG = "#!lua\n"


class Script:
    """One Lua file with the shared prelude behind its first line."""

    def __init__(self, name: str) -> None:
        body = (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
        prelude = (_FOLDER / "prelude.lua").read_text(encoding="utf-8")
        self.name = name
        self.header = body
        self.source = _SHEBANG + prelude + body.removeprefix(_SHEBANG)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def run(
        self, conn: Connection, keys: Sequence[str], args: Sequence[Argument]
    ) -> list[Reply]:
        """Run it; the first element of the answer is the outcome's word."""
        return await conn.evalsha(self.sha, self.source, keys, args)
