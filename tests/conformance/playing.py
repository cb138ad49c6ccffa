"""Play cells side by side in one gateway: start, decide, restart, reconcile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Click,
    Decision,
    Edit,
    Reconcile,
    Reject,
    Respond,
)
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.store import Store
from tests.conformance.oracle import PAID, differences
from tests.conformance.scenes import Cell, Choice, Failure, Killed, Scene
from tests.conformance.topologies import TOPOLOGIES
from tests.resume.programs import items_of
from tests.resume.resume_stack import ANA, DAN
from tests.store_secrets import SECRETS

POLICY = load_policy(
    """
version: 1
defaults: {tier: auto, expires_in: 1h, channel: C0APPROVALS, needs: [U0ANA]}
protect: {pending_per_agent: 1000, requests_per_10m: 1000}
tools:
  pay: {tier: approve}
  pay_soon: {tier: approve, expires_in: 3s}
  transfer_to_b: {tier: approve}
""",
    "policy.yml",
)
AT_ONCE = 6
"""How many cells are played at the same time: what two cores bear."""
CELL_S = 100
LEASE_MS = 4000
"""A busy machine may keep a process from its heartbeat for seconds."""
ENDED = {*PAID, *ItemState} - {
    ItemState.PENDING,
    ItemState.AUTHORIZED,
    ItemState.EXECUTING,
    ItemState.IN_DOUBT,
}


class Player:
    """One open Keyturn, and the people who decide in it."""

    def __init__(self, tk: Keyturn) -> None:
        self.tk = tk
        self.keys = tk.store.keys_of_tenant("default")

    async def items(self, scene: Scene) -> list[Item]:
        """Return the items of a cell's run, oldest first."""
        return await items_of(self.tk, str(scene.cell))

    def run(self, scene: Scene, turn: int | None) -> asyncio.Task[Any]:
        """Run a turn of a cell, with a graph that is built for it; None goes on."""
        topology = TOPOLOGIES[scene.cell.topology]
        work = self.tk.run(
            topology.build(scene),
            None if turn is None else topology.input(turn),
            thread_id=str(scene.cell),
            agent="shop",
            requester=DAN,
            config={"recursion_limit": 100},
        )
        return asyncio.create_task(work)

    async def rests(self, scene: Scene) -> None:
        """Wait until the first payments are pending, and the thread is idle."""
        first = TOPOLOGIES[scene.cell.topology].first
        lease = self.keys.lease("shop", str(scene.cell))
        while True:
            found = [i for i in await self.items(scene) if i.tool == scene.tool_name]
            is_run = await self.tk.store.conn.command("EXISTS", lease)
            if len(found) >= first and not is_run:
                return
            await asyncio.sleep(0.05)

    async def decide(self, scene: Scene) -> None:
        """Decide pending calls by the cell's plan, until this is cancelled."""
        while True:
            items = await self.items(scene)
            payments = [item for item in items if item.tool == scene.tool_name]
            are_ended = all(item.state in ENDED for item in payments)
            for item in items:
                choice = self._choice(scene, item, are_ended=are_ended)
                if choice is not None:
                    await self._click(item, choice)
            await asyncio.sleep(0.05)

    def _choice(self, scene: Scene, item: Item, *, are_ended: bool) -> Decision | None:
        if item.state is ItemState.IN_DOUBT:
            return Reconcile(finding=Finding.EXECUTED)
        if not item.is_pending:
            return None
        if item.tool != scene.tool_name:
            # A handoff is approved last: the parallel calls are dropped then.
            return Approve() if are_ended else None
        half = {**item.args, "amount": float(str(item.args["amount"])) / 2}
        decisions: dict[Choice, Decision] = {
            Choice.APPROVE: Approve(),
            Choice.EDIT: Edit(args=half, reason="half"),
            Choice.REJECT: Reject(reason="no"),
            Choice.RESPOND: Respond(message="ask again tomorrow"),
        }
        return decisions.get(scene.cell.choice)

    async def _click(self, item: Item, decision: Decision) -> None:
        loaded = await self.tk.reviews.read(approval_of(item.id)[0])
        assert loaded
        click = Click(
            approval=loaded.approval.id,
            index=item.index,
            version=loaded.approval.version,
            action_hash=item.action_hash,
        )
        await self.tk.reviews.decide(click, decision, ANA)


@asynccontextmanager
async def quick_store(url: str, *_: object, **__: object) -> AsyncGenerator[Store]:
    """Open a store whose claims are in doubt soon after their owner died."""
    store = Store(url, secrets=SECRETS, lease_ms=LEASE_MS)
    store.retries = RetrySettings(first=timedelta(milliseconds=50))
    try:
        yield store
    finally:
        await store.close()


async def begin(player: Player, scene: Scene) -> None:
    """Bring a cell to where its process ends while people are asked."""
    run = player.run(scene, 1)
    waiting = asyncio.create_task(player.rests(scene))
    await asyncio.wait({run, waiting}, return_when=asyncio.FIRST_COMPLETED)
    run.cancel()
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await run


async def finish(player: Player, scene: Scene) -> list[str]:
    """Play a cell to its end; return the differences."""
    first = None if scene.cell.failure is Failure.RESTART else 1
    run = player.run(scene, first)
    if scene.cell.choice is Choice.SUPERSEDE:
        await player.rests(scene)
        await player.run(scene, 2)
        await run
    else:
        deciding = asyncio.create_task(player.decide(scene))
        try:
            scene.final = await _final(player, scene, run)
        finally:
            deciding.cancel()
        found = differences(scene, await player.items(scene))
        if found:
            return found
        await player.run(scene, 2)
    return differences(scene, await player.items(scene))


async def _final(player: Player, scene: Scene, run: asyncio.Task[Any]) -> object:
    """Return the result of a run; a program that "died" runs its thread again."""
    while True:
        try:
            return await run
        except Killed:
            run = player.run(scene, None)


async def play(cells: Sequence[Cell], url: str, folder: Path) -> dict[Cell, list[str]]:
    """Play cells; return the differences of each."""
    scenes = [Scene(cell) for cell in cells]
    again = [scene for scene in scenes if scene.cell.failure is Failure.RESTART]
    found: dict[Cell, list[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keyturn.gateway.resume.program_runs.BUSY_S", 0.2)
        patch.setattr("keyturn.gateway.embed.open_store", quick_store)
        exits = (SystemExit, GeneratorExit, asyncio.CancelledError, Killed)
        patch.setattr("keyturn.gateway.failures._EXITS", exits)
        if again:
            async with Keyturn(policy=POLICY, url=url, data_dir=folder) as tk:
                player = Player(tk)
                await _each(again, partial(begin, player), found)
        async with Keyturn(policy=POLICY, url=url, data_dir=folder) as tk:
            other = Player(tk)
            left = [scene for scene in scenes if scene.cell not in found]
            await _each(left, partial(finish, other), found)
    return found


async def _each(
    scenes: Sequence[Scene], work: Any, found: dict[Cell, list[str]]
) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(scene: Scene) -> None:
        async with slots:
            try:
                async with asyncio.timeout(CELL_S):
                    result = await work(scene)
            except Exception as error:  # noqa: BLE001 - a cell that breaks is a result
                result = [f"{type(error).__name__}: {error}"]
            if result is not None:
                found[scene.cell] = result

    await asyncio.gather(*(one(scene) for scene in scenes))
