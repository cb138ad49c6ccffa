"""Kill the whole stack between any two of its steps: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.connection import text
from keyturn.gateway.store.store import Store
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.client import UserActionFailed
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, has_button, is_card_of
from tests.conftest import eventually
from tests.forked import Forked
from tests.lifetimes import listed
from tests.resume import sample_tools
from tests.streams import audit_entries

pytestmark = pytest.mark.slow

MODULE = "tests.attacks.stack_process"
REFUND = json.dumps([["refund", {"order": "78291", "amount": 899.0}]])
_SUPERSEDED = ItemState.SUPERSEDED
ENDED = {ItemState.EXECUTED, ItemState.IN_DOUBT}


@dataclass
class Scene:
    """A sandbox whose stack is another process, which may be killed and restarted."""

    sandbox: Sandbox
    store: Store
    checkpoints: Path

    @property
    def ana(self) -> Actor:
        return self.sandbox.person("U0ANA")

    @asynccontextmanager
    async def stack(self, die_at: str = "") -> AsyncGenerator[Forked]:
        """Run the stack; it is ready when the block begins."""
        process = await asyncio.to_thread(
            Forked, MODULE, self.store.conn.url, str(self.checkpoints),
            self.sandbox.api_url, self.sandbox.bot_token, self.sandbox.signing_secret,
            env={**os.environ, sample_tools.DIE: die_at},
        )  # fmt: skip
        try:
            url = (await asyncio.to_thread(process.stdout.readline)).strip()
            assert url.startswith("http"), "the stack did not start"
            self.sandbox.deliver_http(url)
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)

    async def ask(self, text: str) -> None:
        with contextlib.suppress(UserActionFailed):
            await self.sandbox.person("U0DAN").say(CHANNEL, f"@keyturn {text}")

    async def approvals(self) -> list[Approval]:
        keys = self.store.keys_of_tenant("default")
        names = listed(await self.store.conn.command("KEYS", keys.head("*")))
        ids = [text(name).rpartition(":")[2] for name in names]
        found = [await self.store.approvals.load(each) for each in ids]
        return [each.approval for each in found if each]

    async def approval(self) -> Approval:
        """Wait for the approval that counts.

        If a process dies before its checkpoint is written, the model asks again, and
        its second turn supersedes the first.
        """

        async def counts() -> list[Approval]:
            found = await self.approvals()
            return [one for one in found if one.items[0].state is not _SUPERSEDED]

        async def is_there() -> bool:
            return len(await counts()) == 1

        await eventually(is_there)
        [found] = await counts()
        return found

    async def usable_card(self) -> JsonObject:
        """Wait for the card with buttons that counts."""
        approval = await self.approval()
        keys, cards = self.store.keys_of_tenant("default"), self.store.cards

        async def is_there() -> bool:
            return await cards.place(keys, approval.id) is not None

        await eventually(is_there)
        place = await cards.place(keys, approval.id)
        assert place

        def is_it(message: JsonObject) -> bool:
            is_ours = is_card_of(message, approval.id)
            return is_ours and message["ts"] == place.ts

        return await self.ana.message_with(CHANNEL, is_it)

    async def approve(self) -> None:
        """Click Approve; the stack may die of it."""
        card = await self.usable_card()
        with contextlib.suppress(UserActionFailed):
            await self.ana.click(CHANNEL, str(card["ts"]), Action.APPROVE)

    async def ended(self) -> ItemState:
        """Wait until the call has ended; return how."""

        async def has_ended() -> bool:
            return (await self.approval()).items[0].state in ENDED

        await eventually(has_ended)
        return (await self.approval()).items[0].state

    async def count(self, name: EventName) -> int:
        keys = self.store.keys_of_tenant("default")
        entries = await audit_entries(self.store.conn, keys)
        return sum(entry.name is name for entry in entries)


@pytest.fixture
async def scene(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "ledger.txt"))
    async with Sandbox() as sandbox:
        yield Scene(sandbox, store, tmp_path / "checkpoints.db")


async def killed(process: Forked) -> None:
    assert await asyncio.to_thread(process.wait, 20) == -signal.SIGKILL


@pytest.mark.parametrize("point", ["posted", "shown"])
async def test_a_bot_that_dies_beside_the_posting_leaves_one_card(
    scene: Scene, point: str
) -> None:
    async with scene.stack(point) as first:
        await scene.ask(REFUND)
        await killed(first)

    async with scene.stack():
        await scene.approve()

        assert await scene.ended() is ItemState.EXECUTED
        approval = await scene.approval()
        shown = await scene.ana.messages(CHANNEL)
        copies = [each for each in shown if is_card_of(each, approval.id)]
    # A card that was posted and not registered is found, and not posted again.
    assert len(copies) == 1
    assert len(sample_tools.ledger()) == 1
    assert await scene.count(EventName.ITEM_AUTHORIZED) == 1


@pytest.mark.parametrize("point", ["seen", "decided"])
async def test_a_bot_that_dies_beside_the_decision_loses_none_and_counts_it_once(
    scene: Scene, point: str
) -> None:
    async with scene.stack():
        await scene.ask(REFUND)
        await scene.usable_card()
    async with scene.stack(point) as second:
        await scene.approve()
        await killed(second)
    state = (await scene.approval()).items[0].state
    assert state is (ItemState.PENDING if point == "seen" else ItemState.AUTHORIZED)

    async with scene.stack():
        # Slack shows an error for the click that got no answer: Ana clicks again.
        await scene.approve()

        assert await scene.ended() is ItemState.EXECUTED
        card = await scene.usable_card()
        await scene.ana.message_with(
            CHANNEL,
            lambda m: m["ts"] == card["ts"] and "done" in str(m["blocks"]),
        )
    assert len(sample_tools.ledger()) == 1
    assert await scene.count(EventName.ITEM_AUTHORIZED) == 1


@pytest.mark.parametrize(("point", "effects"), [("claimed", 0), ("inside", 1)])
async def test_a_worker_that_dies_inside_leaves_a_doubt_that_a_person_sees(
    scene: Scene, point: str, effects: int
) -> None:
    async with scene.stack(point) as first:
        await scene.ask(REFUND)
        await scene.approve()
        await killed(first)
    assert len(sample_tools.ledger()) == effects

    async with scene.stack():
        assert await scene.ended() is ItemState.IN_DOUBT
        card = await scene.usable_card()
        doubtful = await scene.ana.message_with(
            CHANNEL,
            lambda m: (
                m["ts"] == card["ts"] and has_button(m, Action.RECONCILE_EXECUTED)
            ),
        )
        assert "know whether this ran" in str(doubtful["blocks"])
        assert len(sample_tools.ledger()) == effects, "nothing ran again by itself"

        found = Action.RECONCILE_EXECUTED if effects else Action.RECONCILE_RERUN
        await scene.ana.click(CHANNEL, str(card["ts"]), found)

        assert await scene.ended() is ItemState.EXECUTED
        await eventually(lambda: is_told(scene))
    assert len(sample_tools.ledger()) == 1


async def test_a_publisher_that_dies_beside_an_acknowledgement_loses_no_card(
    scene: Scene,
) -> None:
    async with scene.stack("acknowledged") as first:
        await scene.ask(REFUND)
        await killed(first)

    async with scene.stack():
        await scene.approve()

        assert await scene.ended() is ItemState.EXECUTED
        await eventually(lambda: is_told(scene))
    assert len(sample_tools.ledger()) == 1


async def is_told(scene: Scene) -> bool:
    return await scene.count(EventName.RUN_FINISHED) == 1
