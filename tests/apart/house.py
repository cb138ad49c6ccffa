"""Gateway, bot and agent in three processes, which can be killed or cut off."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import yaml
from typing_extensions import override

from keyturn.bot.ids import Action
from keyturn.cli.demo_context import DemoContext, StoryFailed
from keyturn.cli.demo_stack import CHANNEL, DemoStack, environment
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.config import Settings, SlackMode
from keyturn.gateway.policy_file import PolicyFile
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.gateway.store.keys import LEASE_MS
from keyturn.gateway.store.store import Store
from keyturn.sandbox.client import UserActionFailed
from keyturn.sandbox.json_types import as_object
from keyturn.sandbox.server import Sandbox
from tests.apart.agent_process import AGENT, TOOL
from tests.apart.between import EFFECT, Act, Between, Fate
from tests.apart.cli_process import LEASE
from tests.apart.moved_clock import MovedClock, Spawned
from tests.conftest import eventually
from tests.forked import Forked
from tests.patience import WAIT_S
from tests.ports import free_port
from tests.store_secrets import SECRETS
from tests.tcp_proxy import Proxy

SECRET = SECRETS[0].hex()
POLICY = {
    "version": 1,
    "defaults": {"channel": CHANNEL, "needs": ["U0ANA"]},
    "tools": {TOOL: {"tier": "approve"}},
}
LONG_S = 6 * WAIT_S
"""How long anything may take here at most: processes start, and the machine is busy."""
OVER = {ItemState.SUPERSEDED, ItemState.WITHDRAWN, ItemState.LAPSED}


@dataclass
class Member:
    """One process of the house, which can be killed and restarted."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    clock: MovedClock | None = None
    process: Forked | Spawned | None = None

    async def start(self) -> None:
        """Start it; it is ready a while later."""
        process = await asyncio.to_thread(self._begin)
        self.process = process
        self._reading = asyncio.create_task(asyncio.to_thread(_kept, process, self.log))

    def _begin(self) -> Forked | Spawned:
        if self.clock is None:
            return Forked(*self.words, env=self.env, merged=True)
        return self.clock.start(*self.words, env=self.env)

    async def says(self, words: str) -> None:
        """Wait until its log has some words; fail when it ends before that."""

        async def has_said() -> bool:
            log = self.log.read_text("utf-8") if self.log.exists() else ""
            assert self.process is None or self.process.returncode is None, log
            return words in log

        await eventually(has_said, within_s=LONG_S)

    async def kill(self) -> None:
        """End it as kill -9 does, and wait until it is gone."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            await self.ended()

    async def ended(self) -> int:
        """Wait until it has ended; return how."""
        assert self.process is not None
        await self._reading
        return await asyncio.to_thread(self.process.wait, LONG_S)

    async def again(self) -> None:
        """Kill it and start it again."""
        await self.kill()
        await self.start()


def _kept(process: Forked | Spawned, log: Path) -> None:
    with log.open("a", encoding="utf-8") as file:
        for line in process.stdout:
            file.write(line)
            file.flush()


async def new_key(store: Store, settings: Settings, agent: str = AGENT) -> str:
    """Return an API key of an agent."""
    keys = ApiKeyStore(store, tenant="default")
    return (
        await keys.create("test", timedelta(hours=2), name="a", agents=[agent])
    ).text


@dataclass
class Watched(DemoContext):
    """A script of the demo next to which the records are read."""

    reviews: ReviewService = field(kw_only=True)

    @override
    async def approval(self, approval_id: str) -> Approval:
        """Return the current state of an approval."""
        loaded = await self.reviews.read(approval_id)
        assert loaded, approval_id
        return loaded.approval


@dataclass
class House:
    """The processes, the networks between them, and the people.

    Attributes:
        cuts: networks to the store, to Slack and to the gateway, by their user.
        clocks: movable clocks, by their process.
        urls: address for health and metrics of each process.
    """

    folder: Path
    sandbox: Sandbox
    store: Store
    reviews: ReviewService
    between: Between
    env: Mapping[str, str]
    cuts: dict[str, Proxy] = field(default_factory=dict[str, Proxy])
    clocks: dict[str, MovedClock] = field(default_factory=dict[str, MovedClock])
    members: dict[str, Member] = field(default_factory=dict[str, Member])
    urls: dict[str, str] = field(default_factory=dict[str, str])
    key: str = ""
    clicked: set[str] = field(default_factory=set[str])

    async def start_agent(self, thread: str) -> Member:
        """Start the agent's process for a thread, or start it again."""
        checkpoints = str(self.folder / f"{thread}.sqlite")
        words = ("tests.apart.agent_process", thread, checkpoints)
        return await self.start(thread, *words, f"{self.between.url}{EFFECT}")

    async def start(self, thread: str, *words: str, **more: str) -> Member:
        """Start a program that has the gateway's URL and an API key, and no secret."""
        env = {k: v for k, v in self.env.items() if not k.startswith("KEYTURN_")}
        url = self.cuts["agent-gateway"].url
        env |= {"KEYTURN_GATEWAY": url, "KEYTURN_API_KEY": self.key, **more}
        log, clock = self.folder / f"{thread}.log", self.clocks.get("agent")
        member = Member(words, env, log, clock)
        self.members["agent"] = member
        self.between.thread = thread
        await member.start()
        return member

    async def approvals(self, thread: str) -> list[Approval]:
        """Return what the thread asked, oldest first."""
        keys = self.store.keys_of_tenant("default")
        run = RunRef(agent=AGENT, thread=thread)
        listed = await self.store.approvals.of_run(keys, run)
        found = await self.store.approvals.load_each(one.id for one in listed)
        return [one.approval for one in found]

    @asynccontextmanager
    async def people(self, *threads: str) -> AsyncGenerator[None]:
        """Approve all pending calls of some threads as Ana while the block runs."""
        task = asyncio.create_task(self._approve_all(threads))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _approve_all(self, threads: Sequence[str]) -> None:
        stack = DemoStack(self.sandbox, None, None)  # type: ignore[arg-type] # the rest of it is elsewhere
        none = self.folder / "none"
        context = Watched(
            stack, lambda *_, **__: None, none, none, reviews=self.reviews
        )
        while True:
            for thread in threads:
                for approval in await self.approvals(thread):
                    if approval.items[0].is_pending:
                        await self._click(context, approval)
            await asyncio.sleep(0.05)

    async def _click(self, context: Watched, approval: Approval) -> None:
        """Click on the newest card of an approval, if it has one."""
        for message in reversed(await context.ana.messages(CHANNEL)):
            said = as_object(as_object(message.get("metadata")).get("event_payload"))
            if said.get("approval") == approval.id:
                # Before it: the answer to the click may be lost with the bot.
                self.clicked.add(approval.thread)
                with suppress(UserActionFailed, StoryFailed):
                    await context.click(str(message["ts"]), Action.APPROVE, approval, 0)
                return

    async def was_allowed(self, thread: str) -> None:
        """Check that a person approved before a tool had its effect."""
        assert thread in self.clicked

    async def runs_once(self, thread: str) -> None:
        """Run the agent of a thread to its end, and its call once."""
        async with self.people(thread):
            agent = await self.start_agent(thread)
            assert await agent.ended() == 0, (thread, self.said(thread))
            await self.executed(thread)

    async def executed(self, thread: str) -> None:
        """Check that one call of a thread ran, once, and that none is pending."""
        assert len(self.between.effects.get(thread, [])) == 1, thread
        assert "paid 9" in self.said(thread)

        async def is_settled() -> bool:
            found = await self.states(thread)
            return found.count(ItemState.EXECUTED) == 1 and all(
                state in OVER for state in found if state is not ItemState.EXECUTED
            )

        await eventually(is_settled, within_s=LONG_S)

    async def states(self, thread: str) -> list[ItemState]:
        """Return the states of its calls, oldest first."""
        return [
            item.state for one in await self.approvals(thread) for item in one.items
        ]

    def said(self, thread: str) -> str:
        """Return the log of its agent."""
        return (self.folder / f"{thread}.log").read_text(encoding="utf-8")

    def kills(self, victim: str, fate: Fate = Fate.PASSED) -> Act:
        """Return what kills a process at a stage; all but agents are started again."""

        async def act() -> Fate:
            if victim == "agent":
                await self.members[victim].kill()
                return Fate.DROPPED
            await self.members[victim].again()
            return fate

        return act


@asynccontextmanager
async def open_house(
    folder: Path,
    *,
    lease_ms: int = LEASE_MS,
    mode: SlackMode = SlackMode.SOCKET,
    moved: Collection[str] = (),
    document: Mapping[str, object] | None = None,
) -> AsyncGenerator[House]:
    """Run a gateway and a bot, and give what an agent needs.

    Args:
        folder: for everything that is kept.
        lease_ms: how long what a killed agent held is kept for it.
        mode: how Slack reaches the bot.
        moved: of whom the clock can be moved.
        document: the settings.
    """
    async with AsyncExitStack() as opened:
        enter = opened.enter_async_context
        engine = opened.enter_context(EmbeddedEngine(folder / "store"))
        sandbox = await enter(Sandbox(port=0))
        port, bot_port = free_port(), free_port()
        config = folder / "keyturn.yml"
        listen = {"listen": f"127.0.0.1:{port}"}
        given_ = document or {"policy": POLICY}
        config.write_text(yaml.safe_dump({**given_, "api": listen}))
        machine = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KEYTURN_", "SLACK_"))
        }
        given = environment(sandbox, folder, mode, machine)
        given |= {"KEYTURN_SECRET": SECRET, "NO_COLOR": "1"}
        given["KEYTURN_SLACK_PORT"] = str(bot_port)
        if mode is SlackMode.HTTP:
            sandbox.deliver_http(f"http://127.0.0.1:{bot_port}/slack/events")
        cuts = {
            "gateway-store": await enter(Proxy(engine.url)),
            "bot-store": await enter(Proxy(engine.url)),
            "bot-slack": await enter(Proxy(sandbox.url)),
        }
        settings = Settings.load(config, {**given, "KEYTURN_REDIS_URL": engine.url})
        store = Store(engine.url, secrets=SECRETS)
        opened.push_async_callback(store.close)
        between = await enter(Between(f"http://127.0.0.1:{port}"))
        cuts["agent-gateway"] = await enter(Proxy(between.url))
        reviews = ReviewService(store, PolicyFile(settings.policy))
        house = House(folder, sandbox, store, reviews, between, given, cuts)
        between.before_effect = house.was_allowed
        house.clocks = {one: MovedClock(folder / f"{one}.clock") for one in moved}
        for name in ("gateway", "bot"):
            env = {**given, "KEYTURN_REDIS_URL": cuts[f"{name}-store"].url}
            env["KEYTURN_METRICS_LISTEN"] = f"127.0.0.1:{free_port()}"
            house.urls[name] = f"http://{env['KEYTURN_METRICS_LISTEN']}"
            env[LEASE] = str(lease_ms)
            if name == "bot":
                # The next bot posts when the lease of the one before has ended.
                env[LEASE] = "1500"
                slack = cuts["bot-slack"].url
                env["KEYTURN_SLACK_API_URL"] = given["KEYTURN_SLACK_API_URL"].replace(
                    sandbox.url, slack
                )
            words = ("tests.apart.cli_process", "--config", str(config), name)
            house.members[name] = Member(
                words, env, folder / f"{name}.log", house.clocks.get(name)
            )
            opened.push_async_callback(house.members[name].kill)
            await house.members[name].start()
        await house.members["gateway"].says("reach it at")
        await house.members["bot"].says("serves workspace")
        house.key = await new_key(store, settings)
        yield house
        for member in house.members.values():
            await member.kill()
