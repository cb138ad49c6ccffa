"""Script of the demo with three processes: gateway, bot, and an agent with its key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from typing_extensions import override

from keyturn.cli.apart_processes import READY_S, Apart, ProcessFailed, open_apart
from keyturn.cli.demo_context import DemoContext, Say, StoryFailed
from keyturn.cli.demo_scripts import approve, edit
from keyturn.cli.demo_stack import CHANNEL, REQUESTER, DemoStack, environment
from keyturn.cli.store_access import open_configured
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.config import SlackMode
from keyturn.gateway.policy_file import PolicyFile
from keyturn.gateway.service.reviews import ReviewService
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.server import Sandbox

NAME = "apart"
_TEXT = "refund order 78291"


@dataclass
class ApartContext(DemoContext):
    """A script whose agent is a process of its own.

    Attributes:
        apart: the processes.
        reviews: reads approvals, for the script alone.
        home: the folder of the agent's process.
    """

    apart: Apart = field(kw_only=True)
    reviews: ReviewService = field(kw_only=True)
    home: Path = field(kw_only=True)
    agent: asyncio.subprocess.Process | None = None

    async def start_agent(self, text: str = _TEXT) -> None:
        """Start the agent's process, or start it again with the same words."""
        self.agent = await self.apart.start_agent(self.home, self.home.name, text)

    async def kill_agent(self) -> None:
        """End the agent's process at once, if it runs."""
        if self.agent is not None and self.agent.returncode is None:
            self.agent.kill()
            await self.agent.wait()

    def where_it_stands(self) -> str:
        """Say how the agent's process is, and the last words of every log."""
        log = self.home / "agent.log"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        code = None if self.agent is None else self.agent.returncode
        how = "runs" if code is None else f"ended with {code}"
        said = [f"{name}: {self.apart.said(name)}" for name in self.apart.running]
        return " ".join([f"The agent's process {how}: {' '.join(lines[-3:])}", *said])

    @override
    async def ask(self, text: str = _TEXT) -> tuple[str, Approval]:
        """Start the agent's process with a person's words; wait for the card."""
        before = await self.ana.messages(CHANNEL)
        self.asked_at = str(before[-1]["ts"]) if before else ""
        await self.start_agent(text)
        self.say("agent.asked", by=REQUESTER, text=text)

        def is_newer(message: JsonObject) -> bool:
            return str(message["ts"]) > self.asked_at

        # A process that has to start first takes longer than a step of a script.
        await self.ana.message_with(CHANNEL, is_newer, READY_S)
        return await self.card_after(self.asked_at)

    @override
    async def approval(self, approval_id: str) -> Approval:
        """Read an approval as it is now."""
        loaded = await self.reviews.read(approval_id)
        if loaded is None:
            raise StoryFailed(f"There is no approval {approval_id!r}.")
        return loaded.approval

    @override
    async def final_message(self) -> str:
        """Wait for the end of the agent's process, which prints its answer."""
        assert self.agent is not None  # noqa: S101 - `ask` started it
        async with asyncio.timeout(READY_S):
            out, _ = await self.agent.communicate()
        if self.agent.returncode:
            log = (self.home / "agent.log").read_text(encoding="utf-8")
            raise ProcessFailed(f"The agent's process failed: {log.splitlines()[-1:]}")
        words = out.decode().strip()
        self.say("agent.said", text=words)
        return words


async def play_apart(
    config: Path, folder: Path, env: Mapping[str, str], mode: SlackMode, say: Say
) -> None:
    """Approve one refund and edit another, both of agents in their own processes.

    Raises:
        KeyturnError: when something is otherwise than in one process.
    """
    async with open_scene(config, folder, env, mode, say) as scene:
        for name in ("gateway", "bot"):
            say("process.started", name=name)
        for script in (approve, edit):
            say("part.started", part=script.__name__)
            async with scene.part(script.__name__) as context:
                await script(context)


@dataclass
class Scene:
    """A sandbox with a gateway and a bot apart; each part has an agent of its own."""

    sandbox: Sandbox
    apart: Apart
    reviews: ReviewService
    folder: Path
    say: Say

    @asynccontextmanager
    async def part(self, name: str) -> AsyncGenerator[ApartContext]:
        """Play one part; its agent's process ends with it."""
        home = self.folder / name
        context = ApartContext(
            # Of a demo in one process a part takes the sandbox alone.
            DemoStack(self.sandbox, cast("Any", None)),
            self.say,
            home / "effects.jsonl",
            self.folder / "outage",
            apart=self.apart,
            reviews=self.reviews,
            home=home,
        )
        try:
            yield context
        except StoryFailed as error:
            raise StoryFailed(f"{error} {context.where_it_stands()}") from error
        finally:
            await context.kill_agent()


@asynccontextmanager
async def open_scene(
    config: Path, folder: Path, env: Mapping[str, str], mode: SlackMode, say: Say
) -> AsyncGenerator[Scene]:
    """Open a sandbox, and a gateway and a bot in processes of their own."""
    house = folder / "house"
    house.mkdir()
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(Sandbox(port=0))
        given = environment(sandbox, house, mode, env)
        apart, settings = await stack.enter_async_context(
            open_apart(config, house, given)
        )
        # For the script alone, which looks at what is recorded.
        store = await stack.enter_async_context(open_configured(settings))
        policy = PolicyFile(settings.policy)
        reviews = ReviewService(store, policy, tenant=settings.tenant)
        yield Scene(sandbox, apart, reviews, folder, say)
