"""The empty answer of the web server to a click, written as one text.

aiohttp puts each answer together from objects, which takes about as long as to check
the signature of a click. Of this one only the date differs.
"""

from __future__ import annotations

from email.utils import formatdate
from functools import lru_cache

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter


class Acknowledgement(web.Response):
    """Answers 200 with nothing on a connection that stays open.

    Where there is anything else to say of the connection, aiohttp says it.

    Args:
        now_s: Unix seconds, for its date.
    """

    def __init__(self, now_s: float) -> None:
        super().__init__()
        self._now_s = int(now_s)
        self._is_written = False

    @property
    def keep_alive(self) -> bool | None:
        """Return whether the connection stays open; None: it is not known yet."""
        said = super().keep_alive
        return self._is_written or said if said is None else said

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write it, where nothing else is to be said."""
        transport = request.transport
        is_plain = request.version == HttpVersion11 and request.keep_alive
        if transport is None or not is_plain or super().keep_alive is False:
            return await super().prepare(request)
        transport.write(_text(self._now_s))
        self._is_written = True
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """End it, unless it was written as a whole."""
        if not self._is_written:
            await super().write_eof(data)


@lru_cache(maxsize=2)
def _text(now_s: int) -> bytes:
    # With a date, as RFC 9110 section 6.6.1 asks of who has a clock.
    date = formatdate(now_s, usegmt=True)
    return f"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nDate: {date}\r\n\r\n".encode()
