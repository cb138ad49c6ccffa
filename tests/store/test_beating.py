"""Heartbeats are sent while a block runs, and cost no task before one is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from twokey.gateway.store.beating import beating


async def _never() -> None:
    raise AssertionError("It is not due yet.")


async def test_a_block_that_ends_soon_makes_no_task() -> None:
    before = asyncio.all_tasks()

    async with beating(60.0, _never):
        inside = asyncio.all_tasks()

    assert inside == before


async def test_heartbeats_go_on_after_one_that_failed() -> None:
    sent: list[int] = []
    enough = asyncio.Event()

    async def beat() -> None:
        sent.append(1)
        if len(sent) == 1:
            raise RuntimeError("no")
        enough.set()

    async with beating(0.001, beat):
        await enough.wait()

    assert len(sent) > 1


async def test_no_heartbeat_comes_after_one_that_ended_with_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have its answer in the very moment in which it is cancelled."""
    began = asyncio.Event()
    timers: list[float] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def call_later(
        delay_s: float, callback: Callable[[], object]
    ) -> asyncio.TimerHandle:
        timers.append(delay_s)
        return later(delay_s, callback)

    async def beat() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    monkeypatch.setattr(loop, "call_later", call_later)
    async with beating(0.001, beat):
        await began.wait()

    assert timers == [0.001]
