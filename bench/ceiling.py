"""Serve the least that a click costs in Python: what no bot on aiohttp can be above.

The server checks the signature as Twokey does, reads the payload, and runs one script
that remembers the request and writes a line in a durable Valkey. It knows no card, no
policy and no person. With ``replies`` it also posts once to the click's response URL,
after the answer, as whoever replaces the card has to.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, cast

import aiohttp
from aiohttp import web

from bench.stats import NotMeasured
from bench.store_secrets import SECRETS
from twokey.bot.form import interaction_of
from twokey.bot.ingress import request_digest, signature_problem
from twokey.bot.listening import accept_by_turns, url_of
from twokey.gateway.store.store import Store
from twokey.sandbox.signed_http import SIGNATURE, TIMESTAMP

_SCRIPT = """#!lua
if not redis.call('SET', KEYS[1], '', 'NX', 'PX', 600000) then return {'again'} end
redis.call('XADD', KEYS[2], '*', 'by', ARGV[1], 'button', ARGV[2])
return {'done'}
"""


@asynccontextmanager
async def ceiling(
    store_url: str,
    secret: str,
    *,
    replies: bool,
    listener: socket.socket | None = None,
) -> AsyncGenerator[str]:
    """Serve while the block runs; yields the request URL.

    ``listener`` is the socket that several such processes accept from.
    """
    store = Store(store_url, secrets=SECRETS)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(store.close)
        session = await opened.enter_async_context(aiohttp.ClientSession())
        least = _Least(store, secret, session if replies else None)
        runner = web.ServerRunner(web.Server(least.answer, access_log=None))
        opened.push_async_callback(runner.cleanup)
        await runner.setup()
        if listener:
            # As our own workers do it: one of them would often take all connections.
            accept_by_turns(opened, runner, listener)
            yield url_of(*listener.getsockname()[:2])
        else:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield url_of(*runner.addresses[0][:2])
        await least.finish()


class _Least:
    def __init__(
        self, store: Store, secret: str, session: aiohttp.ClientSession | None
    ) -> None:
        self._store = store
        self._secret = secret
        self._session = session
        self._replies = set[asyncio.Task[None]]()

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer one click."""
        body, headers = await request.read(), request.headers
        now_s = time.time()  # noqa: TID251 - Slack's clock is the other side
        if signature_problem(self._secret, headers, body, now_s=now_s):
            return web.Response(status=HTTPStatus.UNAUTHORIZED)
        payload = cast("dict[str, Any]", interaction_of(body.decode()))
        digest = request_digest(headers[TIMESTAMP], headers[SIGNATURE])
        # Two servers get the same requests, one after the other.
        place = "replying" if self._session else "silent"
        keys = [f"ceiling:{place}:{digest}", f"ceiling:{place}"]
        values = [payload["user"]["id"], payload["actions"][0]["value"]]
        [done] = await self._store.conn.evalsha(_SCRIPT, keys, values)
        if done != b"done":
            return web.Response(status=HTTPStatus.CONFLICT)
        if self._session is not None:
            reply = asyncio.create_task(self._reply(payload["response_url"]))
            self._replies.add(reply)
            reply.add_done_callback(self._replies.discard)
        return web.Response()

    async def finish(self) -> None:
        """Wait until every reply was taken."""
        await asyncio.gather(*self._replies)

    async def _reply(self, url: str) -> None:
        assert self._session is not None
        body = {"replace_original": True, "text": "Approved"}
        async with self._session.post(url, json=body) as answer:
            if answer.status != HTTPStatus.OK:
                raise NotMeasured(f"A response URL answered {answer.status}.")
