"""Two scripts of the demo with a gateway, a bot and an agent in three processes.

The agent's process gets the gateway's URL, an API key and a separate folder. It has
neither the address of the store nor any of Keyturn's secrets.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import yaml
from typing_extensions import override

from keyturn.cli.demo_context import DemoContext, Say, StoryFailed
from keyturn.cli.demo_scripts import approve, edit
from keyturn.cli.demo_stack import CHANNEL, REQUESTER, DemoStack, environment
from keyturn.cli.store_access import open_configured
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.config import Settings, SlackMode
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.policy_file import PolicyFile
from keyturn.gateway.protocol.http_api import NOTE
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.server import Sandbox

READY_S = 120.0
STOP_S = 20.0
AGENT = "support"
ROOT = Path(__file__).parents[2]
_OURS = ("KEYTURN_", "SLACK_")
_LOOK_S = 0.1

_TEXT = "refund order 78291"


Script = Callable[[DemoContext], Awaitable[None]]


class ProcessFailed(KeyturnError):
    """A process did not become ready, or ended unexpectedly."""


@dataclass
class Apart:
    """A gateway and a bot in separate processes, and the data for an agent.

    Attributes:
        folder: the folder of the settings file and the store, hidden from agents.
        env: the environment of gateway and bot.
        port: the port of the gateway's API.
        key: the agent's API key.
        agent: the agent's name.
    """

    folder: Path
    env: Mapping[str, str]
    port: int
    key: str = ""
    agent: str = AGENT
    running: dict[str, asyncio.subprocess.Process] = field(
        default_factory=dict[str, asyncio.subprocess.Process]
    )

    @property
    def url(self) -> str:
        """Return the URL of the gateway."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self, name: str) -> None:
        """Start ``gateway`` or ``bot``."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = await asyncio.create_subprocess_exec(
                *self._command(name), env=self.env, stdout=log, stderr=log
            )

    async def kill(self, name: str) -> None:
        """Kill a process, as kill -9 does."""
        process = self.running.pop(name)
        process.kill()
        await process.wait()

    async def stop(self) -> None:
        """Stop all processes, the last one first."""
        while self.running:
            _, process = self.running.popitem()
            if process.returncode is None:
                process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def make_key(self) -> None:
        """Make the agent's API key, as its operator does on the gateway's side."""
        made = await asyncio.create_subprocess_exec(
            *self._command(
                "api-keys", "create", "apart", "--agent", self.agent, "--json"
            ),
            env=self.env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await made.communicate()
        if made.returncode:
            raise ProcessFailed(f"No API key was made: {err.decode().strip()}")
        self.key = str(json.loads(out)["key"])

    async def until_ready(self) -> None:
        """Wait until the gateway answers the agent's key."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with aiohttp.ClientSession(self.url, headers=headers) as client:
            for _ in range(int(READY_S / _LOOK_S)):
                try:
                    asking = client.post(NOTE.path, json={"agent": self.agent})
                    async with asking as reply:
                        if reply.ok:
                            return
                except aiohttp.ClientError:
                    pass
                for name, process in self.running.items():
                    if process.returncode is not None:
                        raise ProcessFailed(f"{name} ended: {self.said(name)}")
                await asyncio.sleep(_LOOK_S)
        raise ProcessFailed(f"The gateway is not ready: {self.said('gateway')}")

    async def start_agent(
        self, home: Path, thread: str, text: str
    ) -> asyncio.subprocess.Process:
        """Start the agent's process, with a separate folder, a URL and a key."""
        home.mkdir(exist_ok=True)  # noqa: ASYNC240 - of the demo alone
        kept = {k: v for k, v in self.env.items() if not k.startswith(_OURS)}
        env = {
            **kept,
            "KEYTURN_GATEWAY": self.url,
            "KEYTURN_API_KEY": self.key,
            "KEYTURN_DEMO_LEDGER": str(home / "effects.jsonl"),
            "AGENT_THREADS": str(home / "threads.sqlite"),
        }
        with (home / "agent.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "examples.agent_apart", thread, text),
                env=env,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )

    def _command(self, *words: str) -> tuple[str, ...]:
        config = str(self.folder / "keyturn.yml")
        return (sys.executable, "-m", "keyturn", "--config", config, *words)

    def said(self, name: str) -> str:
        """Return the last lines of a process's log."""
        path = self.folder / f"{name}.log"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return " ".join(lines[-5:]) if path.exists() else ""


@contextmanager
def kept_port() -> Generator[int]:
    """Reserve a port of this machine for a server that starts while the block runs.

    Any other process could take a port that is only looked up, before the server starts
    or while it is down. A socket that is bound but does not listen reserves the port:
    the kernel gives it to no other process, and connections are refused. On Linux a
    server that sets ``SO_REUSEADDR``, as asyncio's do, can still bind it. Elsewhere it
    cannot, so there the port is only looked up.
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        port = int(kept.getsockname()[1])
        if sys.platform != "linux":
            kept.close()
        yield port


@dataclass
class ApartContext(DemoContext):
    """A script whose agent runs in a separate process.

    Attributes:
        apart: the processes.
        reviews: reads approvals, only for the script.
        home: the folder of the agent's process.
    """

    apart: Apart = field(kw_only=True)
    reviews: ReviewService = field(kw_only=True)
    home: Path = field(kw_only=True)
    agent: asyncio.subprocess.Process | None = None

    async def start_agent(self, text: str = _TEXT) -> None:
        """Start the agent's process, or restart it with the same text."""
        self.agent = await self.apart.start_agent(self.home, self.home.name, text)

    async def kill_agent(self) -> None:
        """Kill the agent's process, if it runs."""
        if self.agent is not None and self.agent.returncode is None:
            self.agent.kill()
            await self.agent.wait()

    def status(self) -> str:
        """Describe the agent's process, with the last lines of every log."""
        log = self.home / "agent.log"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        code = None if self.agent is None else self.agent.returncode
        how = "runs" if code is None else f"ended with {code}"
        said = [f"{name}: {self.apart.said(name)}" for name in self.apart.running]
        return " ".join([f"The agent's process {how}: {' '.join(lines[-3:])}", *said])

    @override
    async def ask(self, text: str = _TEXT) -> tuple[str, Approval]:
        """Start the agent's process with a person's request; wait for the card."""
        before = await self.ana.messages(CHANNEL)
        self.asked_at = str(before[-1]["ts"]) if before else ""
        await self.start_agent(text)
        self.say("agent.asked", by=REQUESTER, text=text)

        def is_newer(message: JsonObject) -> bool:
            return str(message["ts"]) > self.asked_at

        # A process that must start first takes longer than a step of a script.
        await self.ana.message_with(CHANNEL, is_newer, READY_S)
        return await self.card_after(self.asked_at)

    @override
    async def approval(self, approval_id: str) -> Approval:
        """Return the current state of an approval."""
        loaded = await self.reviews.read(approval_id)
        if loaded is None:
            raise StoryFailed(f"There is no approval {approval_id!r}.")
        return loaded.approval

    @override
    async def final_message(self) -> str:
        """Wait for the end of the agent's process, which prints its answer."""
        assert self.agent is not None
        async with asyncio.timeout(READY_S):
            out, _ = await self.agent.communicate()
        if self.agent.returncode:
            log = (self.home / "agent.log").read_text(encoding="utf-8")
            raise ProcessFailed(f"The agent's process failed: {log.splitlines()[-1:]}")
        words = out.decode().strip()
        self.say("agent.said", text=words)
        return words


async def play_apart(
    folder: Path, say: Say, scripts: Sequence[Script] = (approve, edit)
) -> None:
    """Play scripts of the demo, each with an agent in a separate process.

    Raises:
        KeyturnError: when the result differs from that in one process.
    """
    house = folder / "house"
    house.mkdir()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        sandbox = await enter(Sandbox(port=0))
        machine = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
        machine["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        given = environment(sandbox, house, SlackMode.SOCKET, machine)
        port = stack.enter_context(kept_port())
        document = yaml.safe_load((ROOT / "keyturn.yml").read_text(encoding="utf-8"))
        del document["agents"]
        document["api"] = {"listen": f"127.0.0.1:{port}"}
        path = house / "keyturn.yml"
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        apart = Apart(house, {**given, "NO_COLOR": "1"}, port)
        stack.push_async_callback(apart.stop)
        await apart.start("gateway")
        await apart.make_key()
        await apart.until_ready()
        await apart.start("bot")
        settings = Settings.load(path, apart.env)
        # Only for the script, which reads the records.
        store = await enter(open_configured(settings))
        policy = PolicyFile(settings.policy)
        reviews = ReviewService(store, policy, tenant=settings.tenant)
        for name in ("gateway", "bot"):
            say("process.started", name=name)
        for script in scripts:
            say("part.started", part=script.__name__)
            home = folder / script.__name__
            context = ApartContext(
                # A script uses only the sandbox of the one-process demo.
                DemoStack(sandbox, cast("Any", None)),
                say,
                home / "effects.jsonl",
                folder / "outage",
                apart=apart,
                reviews=reviews,
                home=home,
            )
            try:
                await script(context)
            except StoryFailed as error:
                raise StoryFailed(f"{error} {context.status()}") from error
            finally:
                await context.kill_agent()


async def main() -> None:
    """Play the scripts in a temporary folder, and print each step."""

    def say(event: str, **fields: object) -> None:
        rest = "  ".join(f"{name}={value}" for name, value in fields.items())
        print(f"{event:<20} {rest}")  # noqa: T201 - what `make demo-apart` shows

    with tempfile.TemporaryDirectory(prefix="keyturn-") as folder:
        await play_apart(Path(folder), say)


if __name__ == "__main__":
    asyncio.run(main())
