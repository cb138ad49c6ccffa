"""A reading ahead counts where it is awaited, and nowhere else."""

from __future__ import annotations

import asyncio

import pytest

from twokey.gateway.resume.concurrent import ahead


async def test_a_reading_runs_beside_the_block_and_gives_its_result() -> None:
    began = asyncio.Event()

    async def reading() -> int:
        began.set()
        return 7

    async with ahead(reading()) as task:
        await began.wait()
        assert await task == 7


async def test_the_error_of_a_reading_that_nobody_needs_is_nobodys() -> None:
    async def reading() -> None:
        raise ValueError("away")

    async with ahead(reading()):
        await asyncio.sleep(0)

    with pytest.raises(ValueError, match="away"):
        async with ahead(reading()) as task:
            await task


async def test_a_reading_that_nobody_needs_ends_with_the_block() -> None:
    ended = asyncio.Event()

    async def reading() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with ahead(reading()):
        await asyncio.sleep(0)

    assert ended.is_set()
