"""The waker's log tells people why it waits."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from keyturn.connect.gate import HttpGate
from keyturn.connect.temporal.waker import Waker
from tests.conftest import eventually


async def test_a_gateway_that_is_away_is_one_line_without_places_in_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unused: Any = None
    gate = HttpGate("http://127.0.0.1:9", "tk_x")
    waking = asyncio.create_task(Waker(unused, gate).run())

    async def is_told() -> bool:
        return bool(caplog.records)

    await eventually(is_told)
    waking.cancel()
    await asyncio.gather(waking, return_exceptions=True)
    await gate.aclose()

    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "did not answer" in record.getMessage()
    assert ".py:" not in record.getMessage()
