"""A request without a key is refused by its header, before its body is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime

import httpx
import pytest
from aiohttp import web

from keyturn.gateway.api.rate_limits import MOST_FAILED, FailedKeys
from keyturn.gateway.guarded_server import GuardedServer, Limits
from keyturn.gateway.protocol.http_api import MAX_BODY_BYTES
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.api_keys import ApiKey
from tests.api.api_stack import NOW, ApiStack, serving
from tests.service.harness import ServiceHarness

HANGS_S = 60.0
"""How long an answer may take here at most; it bounds a hang."""
WRONG = f"tk_{'0' * 16}_{'0' * 64}"
MIB = 1024 * 1024


@pytest.fixture
async def stack(store: Store) -> AsyncGenerator[ApiStack]:
    # A body that is waited for ends the request long after the test gave up.
    limits = Limits(body_s=10 * HANGS_S, body_bytes=MAX_BODY_BYTES)
    async with serving(ServiceHarness(store), limits=limits) as found:
        yield found


async def answered(stack: ApiStack, *lines: str, path: str = "/v1/note") -> bytes:
    """Send a header alone, and return the first bytes of the answer."""
    host, _, port = stack.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (f"POST {path} HTTP/1.1", "Host: x", *lines, "", "")
    writer.write("\r\n".join(head).encode())
    try:
        async with asyncio.timeout(HANGS_S):
            return await reader.readline()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "size", [f"Content-Length: {4 * MIB}", "Transfer-Encoding: chunked"]
)
@pytest.mark.parametrize("path", ["/v1/note", "/v1/approvals/ap_1/decide"])
async def test_who_has_no_key_is_refused_before_the_body_is_read(
    stack: ApiStack, size: str, path: str
) -> None:
    wrong = f"Authorization: Bearer {WRONG}"
    refused = [
        await answered(stack, size, path=path),
        await answered(stack, size, wrong, path=path),
    ]

    assert all(b" 401 " in one or b" 403 " in one for one in refused), refused


async def test_a_key_without_the_scope_sends_no_body(stack: ApiStack) -> None:
    key = f"Authorization: Bearer {stack.key(scopes=[])}"

    assert b" 403 " in await answered(stack, f"Content-Length: {4 * MIB}", key)


async def test_what_is_too_long_is_refused_before_it_is_read(stack: ApiStack) -> None:
    key = f"Authorization: Bearer {stack.key()}"
    length = f"Content-Length: {MAX_BODY_BYTES + 1}"

    assert b" 413 " in await answered(stack, key, length)


@pytest.mark.parametrize("path", ["/healthz", "/v1/nothing", "/v1/approvals"])
async def test_no_body_is_read_where_none_is_wanted(stack: ApiStack, path: str) -> None:
    length = f"Content-Length: {4 * MIB}"
    statuses = b" 405 ", b" 404 "
    first = await answered(stack, length, path=path)

    assert any(one in first for one in statuses), first


async def test_little_is_held_of_a_body_while_its_key_is_checked() -> None:
    held: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def admit(request: web.BaseRequest) -> web.StreamResponse | int:
        # All of it would have come in that many turns of the loop.
        for _ in range(2000):
            await asyncio.sleep(0)
        held.set_result(request.content.total_raw_bytes)
        return web.Response(status=401)

    async def handle(_: web.BaseRequest) -> web.StreamResponse:
        raise AssertionError("not admitted")

    limits = Limits(body_bytes=MAX_BODY_BYTES)
    runner = web.ServerRunner(GuardedServer(handle, limits, name="api", admit=admit))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _, writer = await asyncio.open_connection(*runner.addresses[0][:2])
    length = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {4 * MIB}\r\n\r\n"
    writer.write(length.encode() + b"x" * 4 * MIB)
    try:
        async with asyncio.timeout(HANGS_S):
            assert await held < MIB
    finally:
        writer.transport.abort()
        await runner.cleanup()


async def test_an_address_that_tries_keys_is_looked_up_no_more(
    stack: ApiStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = list[str]()
    find = stack.find

    async def counted(key_id: str) -> tuple[ApiKey, datetime] | None:
        looked_up.append(key_id)
        return await find(key_id)

    monkeypatch.setattr(stack.api.keys, "_find", counted)
    stack.api.failed = FailedKeys(clock_s=lambda: 0.0)
    mine, later = (
        {"Authorization": f"Bearer {key}"} for key in (stack.key(), stack.key())
    )
    wrong = {"Authorization": f"Bearer {WRONG}"}
    async with httpx.AsyncClient(base_url=stack.url) as client:

        async def ask(headers: dict[str, str]) -> httpx.Response:
            return await client.get("/v1/approvals", headers=headers)

        first = await ask(mine)
        tried = [await ask(wrong) for _ in range(MOST_FAILED + 5)]
        again, unknown = await ask(mine), await ask(later)
        asked = looked_up.count(WRONG.split("_")[1])
        stack.api.failed = FailedKeys()
        after = await ask(later)

    assert first.status_code == again.status_code == 200
    assert [one.status_code for one in tried] == [401] * MOST_FAILED + [429] * 5
    assert asked == MOST_FAILED
    assert int(tried[-1].headers["Retry-After"]) >= 1
    # It is not yet known whether that one is valid.
    assert (unknown.status_code, after.status_code) == (429, 200)


@pytest.mark.parametrize("change", [{"revoked_at": NOW}, {"expires_at": NOW}])
async def test_a_key_that_was_valid_is_tried_no_more_often_than_others(
    stack: ApiStack, change: dict[str, object]
) -> None:
    stack.api.failed = FailedKeys(clock_s=lambda: 0.0)
    key = stack.key()
    id_ = key.split("_")[1]
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=stack.url) as client:

        async def ask() -> int:
            return (await client.get("/v1/approvals", headers=headers)).status_code

        assert await ask() == 200
        stack.kept[id_] = stack.kept[id_].with_(**change)
        tried = [await ask() for _ in range(MOST_FAILED + 5)]

    assert tried == [401] * MOST_FAILED + [429] * 5


def test_keys_that_are_tried_at_once_keep_an_address_out_no_longer() -> None:
    now_s = 0.0
    failed = FailedKeys(clock_s=lambda: now_s)
    for _ in range(10 * MOST_FAILED):
        failed.check("address")
    for _ in range(10 * MOST_FAILED):
        failed.count("address")
    now_s = 1.0

    failed.check("address")
