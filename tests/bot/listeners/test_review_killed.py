"""Kill -9 the bot's process in the middle of a review of 20 calls."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import ItemState
from keyturn.sandbox.client import UserActionFailed
from tests.bot.bot_stack import POLICY, Stack
from tests.bot.listeners.test_review_together import (
    COUNT,
    confirmed,
    results,
    reviewing,
    states,
    waiting,
)
from tests.forked import Forked
from tests.streams import audit_entries


@asynccontextmanager
async def bot(
    stack: Stack, url: str, folder: Path, *, dies_after: int = 0
) -> AsyncGenerator[Forked]:
    """Run a bot as a separate process; the sandbox delivers to it."""
    policy = folder / "policy.yml"
    policy.write_text(POLICY)
    config = stack.config
    words = (config.bot_token, config.signing_secret, str(policy), str(dies_after))
    process = await asyncio.to_thread(
        Forked, "tests.bot.bot_process", url, config.api_url, *words
    )
    try:
        reached_at = await asyncio.to_thread(process.stdout.readline)
        stack.sandbox.deliver_http(reached_at.strip())
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)


@pytest.mark.slow
async def test_a_killed_bot_loses_and_doubles_nothing_and_the_same_form_goes_on(
    stack: Stack, valkey_url: str, tmp_path: Path
) -> None:
    verdicts = await waiting(stack)
    async with bot(stack, valkey_url, tmp_path, dies_after=1) as first:
        ana = await reviewing(stack)
        await confirmed(ana, {})
        with suppress(UserActionFailed):
            await ana.submit({})
        assert await asyncio.to_thread(first.wait, 60) == -signal.SIGKILL
    assert await states(stack, verdicts) == [ItemState.AUTHORIZED] * COUNT

    async with bot(stack, valkey_url, tmp_path):
        told = await results(ana)

    assert f"*{COUNT} not done*" in told
    assert told.count("Already approved by <@U0ANA>") == COUNT
    assert await states(stack, verdicts) == [ItemState.AUTHORIZED] * COUNT
    entries = await audit_entries(stack.store.conn, stack.keys)
    decided = [one.item for one in entries if one.name is EventName.ITEM_AUTHORIZED]
    assert len(decided) == len({*decided}) == COUNT, "each once"
