"""Several processes are one bot: whatever dies, nothing is lost and nothing doubled."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.bot.bot_stack import CHANNEL, Stack
from tests.bot.workers import is_alive, started
from tests.conftest import eventually
from twokey.bot.ids import Action
from twokey.gateway.config import SlackMode
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Verdict
from twokey.sandbox.client import UserActionFailed

pytestmark = pytest.mark.slow

RUNS = "The bot runs in 2 processes"


async def approve(stack: Stack, verdict: Verdict) -> None:
    """Click on the card until a process answers; a person does that, too."""
    card = await stack.card(verdict)

    async def clicked() -> bool:
        with suppress(UserActionFailed):
            await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
        return await state(stack, verdict) is ItemState.AUTHORIZED

    await eventually(clicked)


async def state(stack: Stack, verdict: Verdict) -> ItemState:
    return (await stack.approval(verdict)).items[0].state


async def test_they_answer_on_one_port_and_stop_in_order(
    stack: Stack, valkey_url: str, tmp_path: Path
) -> None:
    async with started(stack, valkey_url, tmp_path) as workers:
        await workers.said(RUNS)
        assert set(workers.pids) == {"publisher", "worker-1", "worker-2"}
        # Slack waits for an answer; nobody waits for a card.
        publisher, first, second = (
            os.getpriority(os.PRIO_PROCESS, workers.pids[name])
            for name in ("publisher", "worker-1", "worker-2")
        )
        assert first == second < publisher
        for number in range(4):
            verdict = await stack.refund(f"t{number}")
            card = await stack.card(verdict)
            await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
            assert await state(stack, verdict) is ItemState.AUTHORIZED
            await stack.drawn(verdict)

        workers.process.send_signal(signal.SIGTERM)

        assert await workers.ended() == 0
        assert not any(is_alive(pid) for pid in workers.pids.values())
        assert "worker.ended" not in workers.log
        with pytest.raises(aiohttp.ClientConnectorError):
            await workers.ask("/healthz")


async def test_a_worker_that_is_killed_in_the_middle_of_a_click_decides_once_or_never(
    stack: Stack, valkey_url: str, tmp_path: Path
) -> None:
    async with started(stack, valkey_url, tmp_path) as workers:
        await workers.said(RUNS)
        verdict = await stack.refund()
        card = await stack.card(verdict)
        conn = stack.store.conn
        # The click is held up in its first write.
        await conn.command("CLIENT", "PAUSE", 60_000, "WRITE")
        click = asyncio.create_task(
            stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
        )
        await eventually(lambda: _is_asked(stack))
        for name in ("worker-1", "worker-2"):
            await workers.kill(name)
        await conn.command("CLIENT", "UNPAUSE")
        with pytest.raises(UserActionFailed):
            await click

        await approve(stack, verdict)

        item = (await stack.approval(verdict)).items[0]
        assert (item.state, len(item.votes)) == (ItemState.AUTHORIZED, 1)
        assert await stack.store.queue(stack.keys).depth() == 1
        assert "worker.ended name=worker-1 code=-9" in workers.log


async def _is_asked(stack: Stack) -> bool:
    return bool(stack.sandbox.requests) and stack.sandbox.requests[-1].status is None


async def test_a_publisher_that_is_killed_in_the_middle_of_a_post_loses_no_card(
    stack: Stack, valkey_url: str, tmp_path: Path
) -> None:
    async with started(stack, valkey_url, tmp_path) as workers:
        await workers.said(RUNS)
        stack.sandbox.faults.plan("lost_response", "chat.postMessage")
        verdict = await stack.refund()
        await stack.card(verdict)
        # Slack has the card, and nobody has noted it.
        await workers.kill("publisher")

        await approve(stack, verdict)
        place = await stack.drawn(verdict)

        async def is_one() -> bool:
            return [m["ts"] for m in await stack.cards(verdict)] == [place.ts]

        await eventually(is_one)
        # No worker was harmed.
        assert workers.log.count("worker.ended") == 1


async def test_health_and_metrics_are_those_of_all_of_them(
    stack: Stack, valkey_url: str, tmp_path: Path
) -> None:
    async with started(stack, valkey_url, tmp_path) as workers:
        await workers.said(RUNS)
        await approve(stack, await stack.refund())
        assert (await workers.ask("/readyz"))[0] == 200

        # Each connection may reach another process: they must not count apart.
        async def counts() -> set[str]:
            told = [await workers.ask("/metrics") for _ in range(6)]
            assert {status for status, _ in told} == {200}
            return {
                line
                for _, text in told
                for line in text.splitlines()
                if line.startswith("twokey_wait_seconds_count{")
            }

        async def are_told() -> bool:
            return bool(await counts())

        await eventually(are_told)
        os.kill(workers.pids["publisher"], signal.SIGSTOP)
        status, body = await workers.ask("/readyz")
        assert (status, json.loads(body)["problems"]) == (
            503,
            ["The process that publishes cards does not answer."],
        )
        assert (await workers.ask("/healthz")) == (200, "ok\n")
        assert (await workers.ask("/metrics"))[0] == 503


async def test_nobody_outlives_a_supervisor_that_is_killed(
    stack: Stack, valkey_url: str, tmp_path: Path
) -> None:
    async with started(stack, valkey_url, tmp_path) as workers:
        await workers.said(RUNS)

        workers.process.kill()

        async def are_gone() -> bool:
            return not any(is_alive(pid) for pid in workers.pids.values())

        await eventually(are_gone)


async def test_with_socket_mode_each_has_a_connection_of_its_own(
    stack: Stack, valkey_url: str, tmp_path: Path
) -> None:
    stack.mode = SlackMode.SOCKET
    async with started(stack, valkey_url, tmp_path) as workers:
        await workers.said(RUNS)
        calls = [call.method for call in stack.sandbox.calls]
        assert calls.count("apps.connections.open") == 2

        os.kill(workers.pids["worker-1"], signal.SIGKILL)

        await approve(stack, await stack.refund())


@pytest.mark.parametrize(
    ("changes", "count", "words"),
    [
        ({"SLACK_BOT_TOKEN": "xoxb-wrong"}, 2, "Slack refused SLACK_BOT_TOKEN"),
        ({"TWOKEY_SLACK_HOST": "203.0.113.1"}, 2, "cannot listen on 203.0.113.1"),
        ({"TWOKEY_SLACK_MODE": "socket"}, 11, "10 connections in Socket Mode"),
        ({}, 0, "greater than or equal to 1"),
    ],
)
async def test_what_no_start_can_mend_ends_all_of_them_with_one_sentence(
    stack: Stack,
    valkey_url: str,
    tmp_path: Path,
    changes: dict[str, str],
    count: int,
    words: str,
) -> None:
    async with started(stack, valkey_url, tmp_path, count, **changes) as workers:
        assert await workers.ended() == 2
        assert workers.log.count(words) == 1
        assert not any(is_alive(pid) for pid in workers.pids.values())
