"""An agent's process keeps connections to its gateway, and chooses their route."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator

import pytest
from aiohttp import web

from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ServiceHarness

KEY = "tk_" + "0" * 16 + "_" + "0" * 64

TWO_LOOPS = """
import asyncio, sys
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.errors import KeyRefused

gateway = HttpGateway(*sys.argv[1:])
for _ in range(2):
    try:
        asyncio.run(gateway.note("support"))
    except KeyRefused:
        print("answered")
"""


@pytest.fixture
async def stack(store: Store) -> AsyncGenerator[ApiStack]:
    async with serving(ServiceHarness(store)) as found:
        yield found


async def test_a_program_need_not_close_what_its_agents_ask_by(stack: ApiStack) -> None:
    ended = await asyncio.to_thread(
        subprocess.run,
        [
            sys.executable,
            "-W",
            "default::ResourceWarning",
            "-c",
            TWO_LOOPS,
            stack.url,
            KEY,
        ],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stdout.split() == ["answered", "answered"]
    assert ended.stderr == ""


async def test_the_key_goes_to_the_gateway_that_was_named_alone(
    stack: ApiStack,
) -> None:
    met = list[str]()

    async def elsewhere(request: web.BaseRequest) -> web.StreamResponse:
        met.append(request.headers.get("Authorization", ""))
        raise web.HTTPTemporaryRedirect(f"{stack.url}/v1/note")

    runner = web.ServerRunner(web.Server(elsewhere))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    gateway = HttpGateway(f"http://127.0.0.1:{runner.addresses[0][1]}", stack.key())
    try:
        with pytest.raises(StoreUnavailable, match="answered 307"):
            await gateway.note("support")
    finally:
        await gateway.aclose()
        await runner.cleanup()

    assert len(met) == 1
