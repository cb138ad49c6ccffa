"""A real Agent Server on this machine: `langgraph dev`, in a separate environment.

Its packages do not fit into the environment of the tests, so the first test installs
the locked ones beside it, in a few seconds. Nothing leaves this machine afterwards.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import aiohttp
import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements/agent-server.txt"
HERE = Path(__file__).parent
STARTS_WITHIN_S = 120.0

_NO_REGISTRY = ("Failed to fetch", "error sending request", "dns error")

Json = dict[str, Any]


def environment() -> Path:
    """Return the folder with the server's packages; install them first if need be."""
    made_of = f"{sys.version}{LOCK.read_text(encoding='utf-8')}"
    name = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    folder = ROOT / ".pytest_cache" / "agent-server" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The processes of a parallel run share it.
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _install(folder)
            (folder / "ready").touch()
    return folder


def _install(folder: Path) -> None:
    uv = Path(sys.prefix, "bin", "uv")
    python = folder / "bin" / "python"
    for words in (
        ("venv", "--quiet", "--clear", "--python", sys.executable, folder),
        ("pip", "install", "--quiet", "--require-hashes", "-r", LOCK,
         "--python", python),
    ):  # fmt: skip
        done = subprocess.run([uv, *words], capture_output=True, text=True, check=False)
        if any(one in done.stderr for one in _NO_REGISTRY):
            pytest.skip("no package registry to install langgraph-cli from")
        assert done.returncode == 0, done.stderr


@dataclass
class DevServer:
    """A running server.

    Attributes:
        url: its address.
        effects: file to which the tools of its agents append.
        session: sends requests.
        threads: made by tests.
    """

    url: str
    effects: Path
    session: aiohttp.ClientSession
    threads: list[str] = field(default_factory=list[str])

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer to a request as JSON."""
        async with self.session.request(method, self.url + path, json=body) as reply:
            assert reply.status < 300, (path, reply.status, await reply.text())
            return await reply.json(content_type=None) if reply.status != 204 else None

    async def thread(self, graph: str, given: Any, **run: Any) -> str:
        """Start a thread, wait until its run has paused or ended, and return its id."""
        made = await self.ask("POST", "/threads", {})
        self.threads.append(made["thread_id"])
        await self.run(made["thread_id"], graph, input=_input(given), **run)
        return str(made["thread_id"])

    async def run(self, thread: str, graph: str, **run: Any) -> Json:
        """Run a graph in a thread until it has paused or ended."""
        made = await self.begin(thread, graph, **run)
        await self.ask("GET", f"/threads/{thread}/runs/{made['run_id']}/join")
        return made

    async def begin(self, thread: str, graph: str, **run: Any) -> Json:
        """Start a run."""
        body = {"assistant_id": graph, **run}
        return dict(await self.ask("POST", f"/threads/{thread}/runs", body))

    async def questions(self, thread: str) -> list[Json]:
        """Return the open questions of a thread."""
        state = await self.ask("GET", f"/threads/{thread}/state")
        return [one for task in state["tasks"] for one in task["interrupts"]]

    async def runs(self, thread: str) -> list[Json]:
        """Return the runs of a thread, the newest first."""
        return list(await self.ask("GET", f"/threads/{thread}/runs?limit=100"))

    async def ended(self, thread: str) -> None:
        """Wait until the newest run of a thread has paused or ended."""
        newest = (await self.runs(thread))[0]["run_id"]
        await self.ask("GET", f"/threads/{thread}/runs/{newest}/join")

    async def values(self, thread: str) -> Json:
        """Return the state of a thread."""
        return dict((await self.ask("GET", f"/threads/{thread}/state"))["values"])

    def done(self, thread: str, *kinds: str) -> list[Json]:
        """Return the effects of a thread: what its tools did, without its name."""
        if not self.effects.exists():
            return []
        lines = map(json.loads, self.effects.read_text("utf-8").splitlines())
        return [
            {name: it for name, it in one.items() if name != "thread"}
            for one in lines
            if one["thread"] == thread and (not kinds or one["kind"] in kinds)
        ]

    async def forget(self) -> None:
        """Delete the threads of a test, so that the next one does not see them."""
        while self.threads:
            async with self.session.delete(f"{self.url}/threads/{self.threads.pop()}"):
                pass


def _input(given: Any) -> Json:
    if isinstance(given, dict):
        return cast("Json", given)
    return {"messages": [{"role": "user", "content": json.dumps(given)}]}


class Process(NamedTuple):
    """A server's process: its address, and the file of its agents' effects."""

    url: str
    effects: Path


@contextmanager
def dev_server(
    folder: Path,
    graphs: Mapping[str, str],
    env: Mapping[str, str] | None = None,
    **config: Any,
) -> Generator[Process]:
    """Start a server with some graphs, and stop it.

    Args:
        folder: an empty one.
        graphs: name of a graph to ``file.py:name``, next to this file.
        env: variables of its process.
        config: more of its ``langgraph.json``.
    """
    packages, port, log = environment(), free_port(), folder / "server.log"
    listed = {name: str(HERE / ref) for name, ref in graphs.items()}
    text = json.dumps({"dependencies": ["."], "graphs": listed, **config})
    (folder / "langgraph.json").write_text(text, encoding="utf-8")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [
                packages / "bin" / "langgraph",
                *("dev", "--no-browser", "--no-reload", "--allow-blocking"),
                *("--port", str(port)),
            ],
            cwd=folder,
            env={
                **(env or {}),
                "PATH": f"{packages / 'bin'}:{os.environ['PATH']}",
                "HOME": str(folder),
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
                "EFFECTS": str(folder / "effects.jsonl"),
                "LANGGRAPH_CLI_NO_ANALYTICS": "1",
                "LANGSMITH_TRACING": "false",
            },
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        ends = time.monotonic() + STARTS_WITHIN_S
        while not _answers(f"{url}/ok"):
            text = log.read_text("utf-8")[-3000:]
            assert process.poll() is None, text
            assert time.monotonic() < ends, text
            time.sleep(0.05)
        yield Process(url, folder / "effects.jsonl")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - on this machine
            return True
    except OSError:
        return False


@asynccontextmanager
async def connected(
    process: Process, headers: Mapping[str, str] | None = None
) -> AsyncGenerator[DevServer]:
    """Connect a test to a server, and delete its threads in the end."""
    async with aiohttp.ClientSession(headers=headers) as session:
        server = DevServer(process.url, process.effects, session)
        yield server
        await server.forget()
