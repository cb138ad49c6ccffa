"""Start two gateways and two bots as processes, with networks that can be cut."""

from __future__ import annotations

import asyncio
import multiprocessing.process
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from keyturn.bot.manifest import EVENTS_PATH
from keyturn.gateway.setting_forms import AUDIT_KEPT
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.store import Store
from keyturn.sandbox.delivery import Ack, Answer, Envelope, Retry, Transport
from keyturn.sandbox.json_types import as_object
from keyturn.sandbox.server import Sandbox
from tests.chaos import process
from tests.chaos.agent import POLICY
from tests.chaos.process import Settings
from tests.forked import FORKS
from tests.ports import free_port
from tests.resume import postgres_server
from tests.store_secrets import SECRETS
from tests.tcp_proxy import Proxy

LEASE_MS = 1500
_POLITE_S = 10.0
"""How long a process may take to end before it is killed."""
ROLES = {"gateway-1": "gateway", "gateway-2": "gateway", "bot-1": "bot", "bot-2": "bot"}


@dataclass
class Member:
    """One process, which is restarted whenever it ends, and its networks."""

    settings: Settings
    cuts: dict[str, Proxy]
    process: multiprocessing.process.BaseProcess | None = None
    is_ending: bool = False

    def start(self) -> None:
        """Start the process; it is ready a while later."""
        self.process = FORKS.Process(
            target=process.main, args=(self.settings,), daemon=True
        )
        self.process.start()
        self.is_ending = False

    async def end(self, how: signal.Signals) -> None:
        """End the process and start it again; a polite end may take a while."""
        self.is_ending = True
        self.send(signal.SIGCONT)
        self.send(how)
        await self.gone()
        self.start()

    async def gone(self) -> None:
        """Wait until the process has ended, and kill it when that takes too long."""
        if self.process is not None:
            await asyncio.to_thread(self.process.join, _POLITE_S)
            self.process.kill()
            await asyncio.to_thread(self.process.join)

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs, or is paused."""
        return self.process is not None and self.process.is_alive()

    def send(self, how: signal.Signals) -> None:
        """Send a signal to the process, if it lives."""
        if self.is_alive:
            assert self.process
            assert self.process.pid
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, how)


class Noted:
    """Deliver like another transport, and record acknowledged messages.

    Args:
        transport: delivers.
        heard: gets the ts of each acknowledged mention of the bot.
    """

    def __init__(self, transport: Transport, heard: set[str]) -> None:
        self._transport = transport
        self._heard = heard

    @property
    def connected(self) -> bool:
        """Return whether there is a receiver."""
        return self._transport.connected

    async def send(self, envelope: Envelope, retry: Retry | None) -> Answer:
        """Deliver once; record the message when the bot acknowledges it."""
        answer = await self._transport.send(envelope, retry)
        event = as_object(envelope.payload.get("event") or {})
        if isinstance(answer, Ack) and event.get("type") == "app_mention":
            self._heard.add(str(event["ts"]))
        return answer


@dataclass
class Stack:
    """Everything that runs, and how to get at it from outside.

    Attributes:
        heard: ts of the messages to the agent that a bot acknowledged.
        policy: the text in force.
    """

    folder: Path
    store: Store
    sandbox: Sandbox
    engine: EmbeddedEngine
    postgres: str
    members: dict[str, Member] = field(default_factory=dict[str, Member])
    heard: set[str] = field(default_factory=set[str])
    policy: str = ""

    @property
    def effects(self) -> Path:
        """Return the file in which tools write down their effects."""
        return self.folder / "effects.txt"

    def set_policy(self, expires: str, refund: str = "approve") -> None:
        """Change the policy; both gateways and both bots follow its file."""
        fresh = self.folder / "policy.new"
        self.policy = POLICY.format(expires=expires, refund=refund)
        fresh.write_text(self.policy, encoding="utf-8")
        fresh.replace(self.folder / "policy.yml")

    def heal(self) -> None:
        """Resume every process, and open every network."""
        self.sandbox.faults.clear()
        for member in self.members.values():
            member.send(signal.SIGCONT)
            if member.is_ending and not member.is_alive:
                member.start()
            for cut in member.cuts.values():
                cut.open()

    def ended(self) -> list[str]:
        """Return the processes that ended by themselves; they are not restarted."""
        return [
            f"{name} ended by itself"
            for name, member in self.members.items()
            if not member.is_alive and not member.is_ending
        ]

    async def close(self) -> None:
        """End every process."""
        for member in self.members.values():
            member.send(signal.SIGKILL)
        for member in self.members.values():
            await member.gone()


@asynccontextmanager
async def running(
    folder: Path, *, audit_kept: timedelta = AUDIT_KEPT, lease_ms: int = LEASE_MS
) -> AsyncGenerator[Stack]:
    """Run everything on separate servers in a folder."""
    async with AsyncExitStack() as opening:
        postgres = opening.enter_context(postgres_server.running())
        engine = opening.enter_context(EmbeddedEngine(folder / "store"))
        sandbox = await opening.enter_async_context(Sandbox())
        store = Store(engine.url, secrets=SECRETS, lease_ms=lease_ms)
        opening.push_async_callback(store.close)
        stack = Stack(folder, store, sandbox, engine, postgres)
        stack.set_policy("3h")
        opening.push_async_callback(stack.close)
        bots: list[int] = []
        for name, role in ROLES.items():
            cuts = {
                "store": Proxy(engine.url),
                "postgres": Proxy(_socket_of(postgres)),
                "slack": Proxy(sandbox.url),
            }
            for cut in cuts.values():
                await opening.enter_async_context(cut)
            port = free_port()
            if role == "bot":
                bots.append(port)
            settings = Settings(
                role=role,
                log=str(folder / f"{name}.log"),
                effects=str(stack.effects),
                store=cuts["store"].url,
                checkpoints="postgresql://keyturn@127.0.0.1:"
                f"{urlsplit(cuts['postgres'].url).port}/postgres?sslmode=disable",
                slack=f"{cuts['slack'].url}/api/",
                bot_token=sandbox.bot_token,
                signing_secret=sandbox.signing_secret,
                policy=str(folder / "policy.yml"),
                port=port,
                lease_ms=lease_ms,
                audit_kept=audit_kept,
            )
            stack.members[name] = Member(settings, cuts)
        urls = [f"http://127.0.0.1:{port}" for port in bots]
        balancer = await opening.enter_async_context(Proxy(*urls))
        sandbox.deliver_http(f"{balancer.url}{EVENTS_PATH}")
        delivery = sandbox.control.delivery
        delivery.transport = Noted(delivery.transport, stack.heard)
        for member in stack.members.values():
            member.start()
        yield stack


def _socket_of(postgres: str) -> str:
    """Return the address of the Unix socket that a server's URL names."""
    [folder] = parse_qs(urlsplit(postgres).query)["host"]
    return f"unix://{folder}/.s.PGSQL.5432"
