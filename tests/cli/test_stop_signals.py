"""A running command bears SIGHUP, and ends with its terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.store_secrets import ENV

pytestmark = pytest.mark.slow

WAITING = """
import asyncio, fcntl, signal, sys, termios, time
from pathlib import Path
from types import SimpleNamespace
from keyturn.cli.process_end import end_only_with_terminal, end_soon
from keyturn.cli.stop_signals import serve, until_stopped

def note(name):
    Path(name).write_text("yes")

def block():
    note("blocked")
    time.sleep(600)

async def main():
    loop = asyncio.get_running_loop()
    store = None
    if "hanging" in sys.argv:
        for _ in range(64):
            loop.run_in_executor(None, time.sleep, 600)
    if "blocked" in sys.argv:
        loop.call_later(0.01, block)
    if "working" in sys.argv:
        at_work = {("support", f"thread-{n}") for n in range(4)} | {("a", "\\x1b[2J")}
        threads = SimpleNamespace(at_work=at_work)
        store = SimpleNamespace(failure=None, threads=threads)
    if "starting" in sys.argv:
        note("waiting")
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.to_thread(note, "closed")
    if "importing" in sys.argv:
        note("waiting")
        time.sleep(600)
    await until_stopped(store, ready=lambda: note("waiting"))
    await asyncio.to_thread(note, "closed")
    if "working" in sys.argv:
        await asyncio.sleep(600)

if "terminal" in sys.argv:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
# What the tests themselves were started with is inherited.
is_ignored = "nohup" in sys.argv
signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
end_only_with_terminal()
if "background" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
serve(main())
note("ended")
end_soon(0)
"""


async def waiting(
    folder: Path, *words: str, stdin: int = asyncio.subprocess.DEVNULL
) -> asyncio.subprocess.Process:
    """Start a process that waits for a stop, in a separate session."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", WAITING, *words),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stdin=stdin,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    await there(folder / "waiting")
    return process


async def there(path: Path) -> None:
    """Wait for a file."""
    await eventually(lambda: asyncio.to_thread(path.exists))


async def test_a_service_bears_a_hang_up_without_a_terminal(tmp_path: Path) -> None:
    process = await waiting(tmp_path)

    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)

    assert await asyncio.wait_for(process.wait(), timeout=30) == 0
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("words", [(), ("nohup",)])
async def test_a_lost_terminal_ends_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    terminal, end = pty.openpty()
    process = await waiting(tmp_path, "terminal", *words, stdin=end)
    os.close(end)

    os.close(terminal)

    if words:
        process.send_signal(signal.SIGTERM)
    await there(tmp_path / "ended")
    assert await process.wait() == 0


IMPORTED = """
import time
from pathlib import Path

Path("waiting").touch()
while not Path("go").exists():
    time.sleep(0.01)
Path("went_on").touch()
from langgraph.graph import START, StateGraph
graph = StateGraph(dict).add_node("a", lambda _: {}).add_edge(START, "a").compile()
"""
"""An agent whose import takes as long as the test likes."""


async def starting(folder: Path) -> asyncio.subprocess.Process:
    """Start a gateway that is still importing its agent."""
    (folder / "agent.py").write_text(IMPORTED)
    config = folder / "keyturn.yml"
    config.write_text("agents: {a: {graph: 'agent.py:graph'}}\npolicy: {version: 1}\n")
    keyturn = "import runpy, signal\n"
    keyturn += "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    keyturn += "runpy.run_module('keyturn', run_name='__main__', alter_sys=True)\n"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", keyturn, "--config", str(config), "gateway"),
        cwd=folder,
        env={**os.environ, "KEYTURN_DATA_DIR": str(folder), **ENV},
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    await there(folder / "waiting")
    return process


async def test_a_service_that_is_still_starting_bears_a_reload(tmp_path: Path) -> None:
    process = await starting(tmp_path)

    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()

    await there(tmp_path / "went_on")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), timeout=60) == 0


async def test_a_program_in_the_background_ends_as_elsewhere(tmp_path: Path) -> None:
    """A shell without job control starts it with SIGINT ignored."""
    process = await waiting(tmp_path, "background")

    process.send_signal(signal.SIGINT)

    assert await process.wait() == 0
    assert (tmp_path / "ended").exists()


async def test_hanging_tools_do_not_keep_the_process(tmp_path: Path) -> None:
    process = await waiting(tmp_path, "hanging")

    process.send_signal(signal.SIGTERM)

    assert await asyncio.wait_for(process.wait(), timeout=60) == 0
    assert (tmp_path / "closed").exists()
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("word", ["working", "blocked"])
async def test_a_second_ctrl_c_ends_the_process(tmp_path: Path, word: str) -> None:
    process = await waiting(tmp_path, word)
    assert process.stderr
    if word == "blocked":
        await there(tmp_path / word)

    process.send_signal(signal.SIGINT)
    said = await asyncio.wait_for(process.stderr.readuntil(b".\n"), timeout=60)
    process.send_signal(signal.SIGINT)

    assert await asyncio.wait_for(process.wait(), timeout=60) == -signal.SIGINT
    assert b"Ctrl+C again ends it at once" in said
    if word == "working":
        assert b"25 s at most" in said
        assert b"'a \\x1b[2J', support thread-0, support thread-1 and 2 more" in said


async def test_a_starting_program_closes_what_it_opened(tmp_path: Path) -> None:
    # Its workers run tools while it still waits, for example for Slack.
    process = await waiting(tmp_path, "starting")

    process.send_signal(signal.SIGTERM)

    assert await process.wait() == 0
    assert (tmp_path / "closed").exists()


async def test_a_second_sigterm_ends_a_hanging_start(tmp_path: Path) -> None:
    process = await waiting(tmp_path, "importing")

    # Another one each time: two of a kind that come at once are one.
    while process.returncode is None:
        process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 0.1)

    assert process.returncode == -signal.SIGTERM
