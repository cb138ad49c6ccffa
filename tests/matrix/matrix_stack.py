"""Run a whole stack over signed HTTP, with one agent, thread and channel for each cell.

So no two cells see anything of each other but the people who decide them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from keyturn.bot import limits
from keyturn.cli.demo_stack import DemoStack, open_demo_stack
from keyturn.gateway.approvals.record import Approval, Item, approval_of
from keyturn.gateway.config import SlackMode
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.sandbox.records import Message
from keyturn.sandbox.samples import TEAM
from tests.conftest import eventually
from tests.matrix.model import Cell, Requirement
from tests.matrix.people import (
    EMPTY,
    LISTED,
    MISSING,
    PLACES,
    SENIOR,
    SUPPORT,
    Kind,
    populate,
)

PATIENCE_S = 60.0
_BIG, _MAYBE_BIG = "wire_money", "refund"
TOOLS: dict[Requirement, str] = {
    Requirement.BY_GROUP: "by_group",
    Requirement.BY_LIST: "by_list",
    Requirement.NOBODY: "by_nobody",
    Requirement.EMPTY: "by_empty",
    Requirement.MISSING: "by_missing",
    Requirement.RAISED: _MAYBE_BIG,
    Requirement.RAISED_BY_SELF: _MAYBE_BIG,
}
_RAISES = {"to": "escalate", "when": "args.amount > 500", "because": "over 500"}


@dataclass(frozen=True)
class Table:
    """One prepared cell: a separate approval, on a card in a separate channel."""

    cell: Cell
    number: int
    approval: str

    @property
    def channel(self) -> str:
        """Return the channel of its card."""
        return channel_of(self.number)

    @property
    def person(self) -> str:
        """Return the user id of its decider."""
        return PLACES[self.cell.kind].user.id


@dataclass
class MatrixStack:
    """The running stack and what the cells ask of it."""

    demo: DemoStack

    async def lay(self, cells: Sequence[Cell]) -> list[Table]:
        """Submit a call for every cell, and wait for all the cards."""
        tables = [
            Table(cell, number, await self._submit(cell, number))
            for number, cell in enumerate(cells)
        ]

        async def all_posted() -> bool:
            return all(self._posted(table) for table in tables)

        await eventually(all_posted, within_s=PATIENCE_S)
        return tables

    def card(self, table: Table) -> Message:
        """Return the card of a cell."""
        (card,) = self._posted(table)
        return card

    async def approval(self, table: Table) -> Approval:
        """Return the record behind a card."""
        loaded = await self.demo.stack.keyturn.reviews.read(table.approval)
        assert loaded is not None
        return loaded.approval

    async def item(self, table: Table) -> Item:
        """Return the one call of a cell."""
        return (await self.approval(table)).items[0]

    def _posted(self, table: Table) -> list[Message]:
        messages = self.demo.sandbox.workspace.messages[table.channel].values()
        return [message for message in messages if message.thread_ts is None]

    async def _submit(self, cell: Cell, number: int) -> str:
        agent, thread = agent_of(number), "t1"
        keyturn = self.demo.stack.keyturn
        keys = keyturn.store.keys_of_tenant("default")
        facts = ThreadFacts(
            requester=_person(Kind.REQUESTER), principals=(_person(Kind.OWNER),)
        )
        await keyturn.store.threads.change(
            keys, agent, thread, lambda _: facts, why="aside"
        )
        call = ProposedCall(
            tool=TOOLS.get(cell.requirement, _BIG),
            args={"amount": 12, "order_id": "78291"},
            tool_call_id="c1",
        )
        ref = TurnRef(agent=agent, thread=thread, message_id="m1")
        (verdict,) = await keyturn.service.submit(Turn(ref=ref, calls=(call,)))
        return approval_of(verdict.item_id)[0]


@asynccontextmanager
async def open_matrix_stack(cells: Sequence[Cell]) -> AsyncGenerator[MatrixStack]:
    """Start the stack, and invite everyone to the channels of all cells.

    Slack's rate limits are off on both sides: hundreds of cards are posted.
    """
    folder = Path(tempfile.mkdtemp(prefix="tk-matrix-"))
    config = folder / "keyturn.yml"
    config.write_text(json.dumps({"policy": _policy(len(cells))}), encoding="utf-8")
    try:
        with pytest.MonkeyPatch.context() as patch:
            for method in (limits.POST, limits.UPDATE, limits.GROUP_USERS, limits.USER):
                patch.setitem(limits.RATES, method, limits.Rate(1e6, 1_000_000))
            async with open_demo_stack(
                config, folder / "data", mode=SlackMode.HTTP, is_kept=False
            ) as demo:
                demo.sandbox.rates.enabled = False
                channels = map(channel_of, range(len(cells)))
                populate(demo.sandbox.workspace, channels)
                yield MatrixStack(demo)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def agent_of(number: int) -> str:
    """Return the agent of a cell."""
    return f"agent-{number}"


def channel_of(number: int) -> str:
    """Return the channel of a cell."""
    return f"C0CELL{number:04d}"


def _person(kind: Kind) -> Person:
    return Person(team=TEAM, user=PLACES[kind].user.id)


def _policy(cells: int) -> dict[str, object]:
    schema = {
        "type": "object",
        "properties": {
            "amount": {"type": "number", "minimum": 0, "maximum": 1000},
            "order_id": {"type": "string"},
        },
        "required": ["amount", "order_id"],
        "additionalProperties": False,
    }
    big = {"tier": "escalate", "args_schema": schema}
    needs: dict[Requirement, object] = {
        Requirement.BY_GROUP: "support",
        Requirement.BY_LIST: "listed",
        Requirement.NOBODY: [],
        Requirement.EMPTY: "empty",
        Requirement.MISSING: "missing",
        Requirement.RAISED: ["support", "listed", "senior"],
    }
    tools: dict[str, object] = {
        tool: {
            "tier": "approve",
            "args_schema": schema,
            **({"needs": needs[requirement]} if needs[requirement] else {}),
        }
        for requirement, tool in TOOLS.items()
        if requirement in needs
    }
    refund = {**cast("dict[str, object]", tools[_MAYBE_BIG]), "raise": [_RAISES]}
    return {
        "version": 1,
        "roles": {
            "support": {"usergroups": [SUPPORT]},
            "senior": {"usergroups": [SENIOR]},
            "empty": {"usergroups": [EMPTY]},
            "missing": {"usergroups": [MISSING]},
            "listed": {"users": list(LISTED)},
        },
        "tiers": {
            "escalate": {"needs": "with_senior"},
        },
        "requirements": {
            "with_senior": {
                "all": [{"of": ["support", "listed", "senior"]}, {"of": "senior"}]
            }
        },
        "tools": {**tools, _MAYBE_BIG: refund, _BIG: big},
        "agents": {
            agent_of(number): {"channel": channel_of(number)} for number in range(cells)
        },
    }
