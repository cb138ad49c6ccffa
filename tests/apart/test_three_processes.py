"""Gateway, bot and agent in three processes, each of which may be killed."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from keyturn.bot.ids import Action
from keyturn.cli.demo_stack import CHANNEL
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.config import SlackMode
from keyturn.gateway.protocol.records import ItemState
from keyturn.sandbox.client import UserActionFailed
from tests.apart.three_processes import (
    READY_S,
    ApartContext,
    kept_port,
    open_scene,
    play_apart,
)
from tests.conftest import eventually
from tests.forked import Forked
from tests.levels import sample

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def played(script: str) -> list[dict[str, Any]]:
    """Return the events of a script of the demo."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = Forked("keyturn", "demo", "--script", script, "--json", cwd=ROOT, env=env)
    shown = run.stdout.read()
    assert run.wait() == 0, shown
    return [json.loads(line) for line in shown.splitlines()]


def told(events: list[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    """Return the parts that are equal in every run."""
    return [
        (one["event"], one.get("action"), one.get("errors"))
        for one in events
        if not one["event"].startswith(("script.", "process.", "part."))
    ]


async def test_three_processes_end_as_one_does(tmp_path: Path) -> None:
    apart = list[dict[str, Any]]()

    def say(event: str, **fields: object) -> None:
        apart.append({"event": event, **fields})

    env = {"PYTHONPATH": str(ROOT / "src")}
    await play_apart(ROOT / "keyturn.yml", tmp_path, env, SlackMode.SOCKET, say)

    assert told(apart) == told(played("approve")) + told(played("edit"))


async def kill(context: ApartContext, victim: str) -> None:
    """Kill a process as kill -9 does, and start it again."""
    if victim == "agent":
        await context.kill_agent()
        await context.start_agent()
        return
    await context.apart.kill(victim)
    await context.apart.start(victim)


async def click(context: ApartContext, ts: str, approval: Approval) -> None:
    """Approve, again and again while the bot starts, as a person does."""

    async def is_answered() -> bool:
        try:
            await context.click(ts, Action.APPROVE, approval, 0)
        except UserActionFailed:
            return False
        return True

    await eventually(is_answered, within_s=READY_S)


async def executed(context: ApartContext, ts: str, approval: Approval) -> None:
    """Wait until the call is executed; reconcile it if it is in doubt.

    A kill between the start of a call and its end leaves it in doubt.
    """

    async def is_executed() -> bool:
        [item] = (await context.approval(approval.id)).items
        if item.state is ItemState.IN_DOUBT:
            ran = bool(context.effects())
            found = Action.RECONCILE_EXECUTED if ran else Action.RECONCILE_RERUN
            # The card shows the button as soon as it is drawn again.
            with suppress(UserActionFailed):
                await context.ana.click(CHANNEL, ts, found)
        return item.state is ItemState.EXECUTED

    await eventually(is_executed, within_s=READY_S)


@pytest.mark.timeout(600)
async def test_whichever_process_is_killed_nothing_runs_twice(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(ROOT / "src")}
    scene = open_scene(
        ROOT / "keyturn.yml", tmp_path, env, SlackMode.SOCKET, lambda *_, **__: None
    )
    async with scene as house:
        for victim in sample(("agent", "gateway", "bot"), 1):
            for stage in ("asked", "decided"):
                async with house.part(f"{victim}-{stage}") as context:
                    ts, approval = await context.ask()
                    if stage == "asked":
                        await kill(context, victim)
                    await click(context, ts, approval)
                    if stage == "decided":
                        await kill(context, victim)
                    await executed(context, ts, approval)
                    words = await context.final_message()

                    assert "899" in words, (victim, stage)
                    assert len(context.effects()) == 1, (victim, stage)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is only looked up")
def test_a_port_is_kept_for_the_server_that_it_was_chosen_for() -> None:
    with kept_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        for _ in range(2):
            with socket.create_server(("127.0.0.1", port)) as server:
                assert server.getsockname()[1] == port
