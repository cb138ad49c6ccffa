"""The embedded store of a program or a service may die; its data survives."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Decided
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.embedded import engine
from keyturn.gateway.store.open_store import ENGINE_FOLDER
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import RULES
from tests.resume.test_embed import asked, decide, refund


@pytest.mark.slow
async def test_a_program_goes_on_after_its_embedded_store_was_killed(
    tmp_path: Path,
) -> None:
    async with Keyturn(policy=RULES, data_dir=tmp_path) as tk:
        run = asyncio.create_task(
            tk.run(sample_tools.graph, refund(), thread_id="t1", agent="shop")
        )
        item = await asked(tk)
        await server_killed(tk, tmp_path)

        assert isinstance(await decide(tk, item), Decided)
        final = await run

    assert final["messages"][-1].text == "refunded 78291 899"
    assert len(sample_tools.ledger()) == 1


async def server_killed(tk: Keyturn, data_dir: Path) -> None:
    """Kill the server of a program of this process, and wait for the next one."""
    with engine.EmbeddedEngine(data_dir / ENGINE_FOLDER) as server:
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        async def is_back() -> bool:
            with suppress(StoreUnavailable):
                return server.pid != pid and bool(await tk.store.conn.command("PING"))
            return False

        await eventually(is_back)
