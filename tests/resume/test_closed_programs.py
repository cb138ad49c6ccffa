"""A program that closes ends every wait for a thread at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import ThreadUnavailable
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.resume.resume_stack import RULES
from tests.resume.test_embed import asked, refund

PLACE: Any = {"thread_id": "t1", "agent": "shop"}


ASKING = sample_tools.graph


async def _run(tk: Keyturn) -> object:
    return await tk.run(ASKING, refund(), **PLACE)


async def _stream(tk: Keyturn) -> object:
    return [one async for one in tk.stream(ASKING, refund(), **PLACE)]


async def _wait(tk: Keyturn) -> object:
    with suppress(TimeoutError):
        await tk.run(ASKING, refund(), timeout_s=0.1, **PLACE)
    return await tk.wait(ASKING, **PLACE)


@pytest.mark.parametrize("ask", [_run, _stream, _wait])
async def test_a_wait_ends_when_the_program_closes(
    store: Store, tmp_path: Path, ask: Callable[[Keyturn], Awaitable[object]]
) -> None:
    async with Keyturn(policy=RULES, url=store.conn.url, data_dir=tmp_path) as tk:
        waiting = asyncio.ensure_future(ask(tk))

        await asked(tk)
        assert not waiting.done()

    async with asyncio.timeout(5):
        with pytest.raises(ThreadUnavailable, match="run it again to go on"):
            await waiting


@pytest.mark.parametrize("ask", [_run, _stream, _wait])
async def test_a_run_that_begins_while_the_program_closes_is_told_so(
    store: Store, tmp_path: Path, ask: Callable[[Keyturn], Awaitable[object]]
) -> None:
    async with Keyturn(policy=RULES, url=store.conn.url, data_dir=tmp_path) as tk:
        waiting = asyncio.ensure_future(ask(tk))

    with pytest.raises(ThreadUnavailable, match="run it again to go on"):
        await waiting
