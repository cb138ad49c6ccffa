"""A gateway for the tests: a store, a policy, reviewers, and the shop's agent."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Click,
    Decision,
    Outcome,
    Reviewer,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval, Item, Origin
from keyturn.gateway.embed import running
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState, Person, RunRef
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner, Runners
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.streams import announced

POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: [U0ANA]}
tools:
  look_up: {tier: auto}
  refund: {tier: approve}
  email: {tier: approve, idempotent: true}
  slow: {tier: approve}
  charge: {tier: approve, on_failure: ask}
  brief: {tier: approve, expires_in: 1s}
"""
DAN = Person(team="T0", user="U0DAN", name="Dan")
ANA = Reviewer(team="T0", user="U0ANA", name="Ana", account=AccountKind.MEMBER)
ORIGIN = Origin(channel="C0SHOP", thread_ts="1.0")
RULES = load_policy(POLICY, "policy.yml")
REFUND = ("refund", {"order": "78291", "amount": 899.0})
EMAIL = ("email", {"to": "ana@example.org"})
AT_ONCE = RetrySettings(
    first=timedelta(milliseconds=2),
    longest=timedelta(milliseconds=20),
    notify_after=timedelta(),
)
"""Retries that no test has to wait for."""
GIVING_UP = AT_ONCE.model_copy(update={"unknown_limit": timedelta(milliseconds=50)})
"""The same, and hardly any for errors that nobody knows."""


class Stack:
    """The actions of people and an agent in one store."""

    def __init__(
        self,
        store: Store,
        runner: Runner,
        saver: BaseCheckpointSaver[Any] | None = None,
    ) -> None:
        self.store = store
        self.saver: Any = saver or runner._saver  # pyright: ignore[reportPrivateUsage] - where its threads are
        self.runner = runner
        self.runners: dict[str, Runner] = {"shop": runner}
        self.keys = store.keys_of_tenant("default")
        self.policy = RULES
        self.reviews = ReviewService(store, lambda: self.policy)

    @asynccontextmanager
    async def working(
        self, *, retries: RetrySettings | None = None, **options: Any
    ) -> AsyncGenerator[AgentService]:
        """Run a worker and the clock."""
        self.store.retries = retries or self.store.retries
        async with running(
            self.store,
            lambda: self.policy,
            Runners(self.runners, self.saver),
            **options,
        ) as gateway:
            yield gateway

    async def ask(self, *calls: tuple[str, dict[str, Any]], thread: str = "t1") -> None:
        """Give the agent a list of calls to make."""
        await self.say(json.dumps(calls), thread=thread)

    async def say(self, text: str, *, thread: str = "t1") -> None:
        """Send the agent a message."""
        await self.reviews.ask_agent("shop", thread, text, requester=DAN, origin=ORIGIN)

    async def approvals(self, thread: str = "t1") -> list[Approval]:
        """Return the thread's approvals that can be read, oldest first."""
        run_ref = RunRef(agent="shop", thread=thread)
        listed = await self.store.approvals.of_run(self.keys, run_ref)
        found = await self.store.approvals.load_each(one.id for one in listed)
        return [one.approval for one in found]

    async def items(self, thread: str = "t1") -> list[Item]:
        """Return the thread's items in order."""
        return [item for one in await self.approvals(thread) for item in one.items]

    async def asked(self, count: int = 1, *, thread: str = "t1") -> list[Item]:
        """Wait until this many items are pending and asked about; return them."""

        async def is_so() -> bool:
            state = await self.runner.probe(thread)
            return len(await self._pending(thread)) == count == len(state.pending)

        await eventually(is_so)
        return await self._pending(thread)

    async def decide(
        self, item: Item, decision: Decision | None = None, *, by: Reviewer = ANA
    ) -> Outcome:
        """Decide an item in its current version."""
        approval_id = item.id.rpartition(".")[0]
        loaded = await self.store.approvals.load(approval_id)
        assert loaded
        now = loaded.approval.items[item.index]
        click = Click(
            approval=approval_id,
            index=item.index,
            version=loaded.approval.version,
            action_hash=now.action_hash,
        )
        return await self.reviews.decide(click, decision or Approve(), by)

    async def states(self, thread: str = "t1") -> list[ItemState]:
        """Return the states of the thread's items."""
        return [item.state for item in await self.items(thread)]

    async def events(self, name: EventName, thread: str = "t1") -> list[Event]:
        """Return the thread's events of one name."""
        entries = await announced(self.store.conn, self.keys)
        return [one for one in entries if one.name is name and one.thread == thread]

    async def words(self, count: int = 1, *, thread: str = "t1") -> str:
        """Wait for the agent's last words; return them."""

        async def is_so() -> bool:
            found = await self.events(EventName.RUN_FINISHED, thread)
            return len(found) >= count

        await eventually(is_so)
        told = await self.events(EventName.RUN_FINISHED, thread)
        assert len(told) == count
        return told[-1].data.get("text", "")

    async def idle(self) -> None:
        """Wait until no job is left."""

        async def is_so() -> bool:
            return await self.store.queue(self.keys).depth() == 0

        await eventually(is_so)

    async def _pending(self, thread: str) -> list[Item]:
        return [item for item in await self.items(thread) if item.is_pending]


@asynccontextmanager
async def open_stack(store: Store, checkpoints: Path) -> AsyncGenerator[Stack]:
    """Set up the shop's agent on a store."""
    async with open_checkpoints(str(checkpoints)) as saver:
        runner = Runner(attached(sample_tools.graph(), saver), agent="shop")
        yield Stack(store, runner, saver)
