"""The waker's log tells people why it waits, and when it goes on."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from aiohttp import web

from keyturn.connect.gate import HttpGate
from keyturn.connect.temporal import waker
from tests.api.api_stack import serving
from tests.conftest import eventually
from tests.service.harness import ServiceHarness

AWAY = 10
"""Number of requests that fail."""


async def test_a_gateway_that_is_away_is_one_line_and_one_when_it_is_back(
    people: ServiceHarness,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waker, "PAUSE_S", 0.01)
    requests = itertools.count()

    @web.middleware
    async def away_at_first(request: web.BaseRequest, handler: Any) -> Any:
        is_away = next(requests) < AWAY
        return web.Response(status=502) if is_away else await handler(request)

    unused: Any = None
    async with serving(people, [away_at_first]) as stack:
        gate = HttpGate(stack.url, stack.key(agents=["*"]))
        waking = asyncio.create_task(waker.Waker(unused, gate).run())

        await eventually(lambda: len(caplog.records) > 1)
        waking.cancel()
        await asyncio.gather(waking, return_exceptions=True)
        await gate.aclose()

    began, ended = (one.getMessage() for one in caplog.records)
    assert "outage.began of=the gateway" in began
    assert "answered 502" in began
    assert ".py:" not in began
    assert ended == "outage.ended of=the gateway"
