"""Play the scripts of the demo with an agent that has only an API key.

The program of the agent replaces one in another process: it submits over real HTTP, has
separate checkpoints, and knows no store. A person's message starts its run as in a
separate program; the gateway starts none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from typing_extensions import override

from keyturn.cli.demo_context import STEP_TIMEOUT_S, DemoContext
from keyturn.cli.demo_stack import (
    CHANNEL,
    FIRST_REQUEST,
    REQUESTER,
    DemoStack,
    environment,
    open_demo_stack,
)
from keyturn.gateway.api.serving import api_key_seals
from keyturn.gateway.approvals.record import Approval, Origin
from keyturn.gateway.config import Settings, SlackMode
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.protocol.records import Person as Requester
from keyturn.gateway.remote.program import RemoteKeyturn
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.gateway.trust.api_keys import new_api_key
from keyturn.sandbox.client import Person
from keyturn.sandbox.samples import TEAM
from tests.apart.three_processes import without_agents
from tests.patience import lift_limits

AGENT = "support"
_CALLED = "@keyturn "


@dataclass
class Program:
    """The agent's program: a person's message in the channel starts a run.

    Attributes:
        runs: by the message that started them.
    """

    remote: RemoteKeyturn
    graph: Any
    runs: dict[str, asyncio.Task[str]] = field(
        default_factory=dict[str, asyncio.Task[str]]
    )

    def begin(self, ts: str, words: str, user: str, name: str) -> None:
        """Start the run of a person's message."""
        requester = Requester(team=TEAM, user=user, name=name)
        self.runs[ts] = asyncio.create_task(self._answer(ts, words, requester))

    async def answer(self, ts: str) -> str:
        """Wait for the agent's last message."""
        async with asyncio.timeout(STEP_TIMEOUT_S):
            return await self.runs[ts]

    async def stop(self) -> None:
        """Stop every run in its current state."""
        for run in self.runs.values():
            run.cancel()
        await asyncio.gather(*self.runs.values(), return_exceptions=True)

    async def _answer(self, ts: str, words: str, requester: Requester) -> str:
        final = await self.remote.run(
            self.graph,
            {"messages": [("user", words)]},
            thread_id=ts,
            agent=AGENT,
            requester=requester,
            origin=Origin(channel=CHANNEL, thread_ts=ts),
        )
        return str(final["messages"][-1].text)


class Asker(Person):
    """A person whose words start the agent's program instead of a run of the bot's."""

    def __init__(self, person: Person, program: Program) -> None:
        vars(self).update(vars(person))  # the same person, connection included
        self._program = program

    @override
    async def say(self, channel: str, text: str, thread_ts: str | None = None) -> str:
        """Post a message; a request in the channel reaches the program."""
        if thread_ts is not None or not text.startswith(_CALLED):
            return await super().say(channel, text, thread_ts)
        words = text.removeprefix(_CALLED)
        ts = await super().say(channel, words)
        self._program.begin(ts, words, self.id, self.id)
        return ts


@dataclass
class RemoteContext(DemoContext):
    """A script whose agent is run by a separate program."""

    program: Program = field(kw_only=True)

    @property
    @override
    def dan(self) -> Person:
        """Return the agent's requester."""
        return Asker(super().dan, self.program)

    @override
    async def ask(self, text: str = FIRST_REQUEST) -> tuple[str, Approval]:
        """Ask the agent and wait for the card; return its ts and the approval."""
        self.asked_at = await self.dan.say(CHANNEL, text)
        self.say("agent.asked", by=REQUESTER, text=text)
        return await self.card_after(self.asked_at)

    @override
    async def final_message(self) -> str:
        """Wait for what the program returns."""
        words = await self.program.answer(self.asked_at)
        self.say("agent.said", text=words)
        return words


@asynccontextmanager
async def remote_agent(
    demo: DemoStack, config: Path, data_dir: Path, graph: Any
) -> AsyncGenerator[Program]:
    """Run the program of an agent next to a gateway that serves its API."""
    settings = Settings.load(
        config, environment(demo.sandbox, data_dir, SlackMode.HTTP, None)
    )
    store = demo.stack.keyturn.store
    keys = ApiKeyStore(store, api_key_seals(settings), tenant=settings.tenant)
    now = await keys.now()
    made = new_api_key(
        api_key_seals(settings), name="program", tenant=settings.tenant,
        agents=[AGENT], now=now, expires_at=now + timedelta(hours=1),
    )  # fmt: skip
    await keys.add(made.kept, "test")
    apart = graph.copy(update={"checkpointer": InMemorySaver()})
    async with Keyturn.remote(demo.stack.api_url, api_key=made.text) as remote:
        program = Program(remote, apart)
        try:
            yield program
        finally:
            await program.stop()


@asynccontextmanager
async def open_remote_demo(
    config: Path,
    folder: Path,
    policy: Path | None,
    graph: Any,
    say: Callable[..., None],
) -> AsyncGenerator[RemoteContext]:
    """Open the demo without agents, and the program of one next to it.

    Slack's rate limits are off on both sides: the story in one process covers them.
    """
    without = without_agents(config, folder, 0, policy)
    data_dir = folder / "data"
    with pytest.MonkeyPatch.context() as patch:
        lift_limits(patch)
        async with (
            open_demo_stack(
                without, data_dir, mode=SlackMode.HTTP, is_kept=False
            ) as demo,
            remote_agent(demo, without, data_dir, graph) as program,
        ):
            ledger = folder / "effects.jsonl"
            yield RemoteContext(demo, say, ledger, folder / "away", program=program)
