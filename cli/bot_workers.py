"""Run the bot in several processes: some answer Slack, one publishes.

``twokey bot --workers N`` opens the port and starts itself N + 1 times, with the hidden
option ``--worker``. New processes and not forks: nothing of an event loop or of an open
connection is shared, on macOS as on Linux.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from twokey.bot.config import BotConfig
from twokey.bot.listening import HTTP_PORT, shared_listener
from twokey.bot.worker import Part, Worker
from twokey.cli import console
from twokey.cli.command_context import CommandContext
from twokey.cli.stack import bot_config
from twokey.cli.stop_signals import until_stopped
from twokey.cli.store_access import open_configured
from twokey.cli.supervisor import READY, Child, Supervisor
from twokey.gateway.config import SlackMode
from twokey.gateway.errors import SettingsError

MOST = 32
SLACK_SOCKETS = 10
"""How many connections Slack lets an app have in Socket Mode."""


async def run_workers(
    command: CommandContext, workers: int, *, insecure_dev: bool
) -> int:
    """Run until a signal; return the exit code.

    Raises:
        SettingsError: something that no start with these settings can do.
        StoreUnavailable: the store does not answer, or does not come back.
    """
    settings = command.settings()
    config = bot_config(settings)
    _ensure_sockets(config, workers)
    with ExitStack() as opened:
        listener = _listener(opened, config)
        folder = opened.enter_context(TemporaryDirectory(prefix="twokey-"))
        options = ["--insecure-dev"] if insecure_dev else []
        given = [*_globals(command), "bot", *options]
        health, fd = str(Path(folder, "health")), listener.fileno() if listener else -1
        publisher = _child("publisher", given, Part.PUBLISHES, -1, health)
        answering = [
            _child(f"worker-{number}", given, Part.ANSWERS, fd, health)
            for number in range(1, workers + 1)
        ]
        # Held open here too: an embedded store outlives each of its processes.
        async with open_configured(
            settings, insecure_dev=insecure_dev, waits=True
        ) as store:
            supervisor = Supervisor(publisher, answering)
            signals = asyncio.create_task(until_stopped(supervisor.reload, store))
            keepers = list[asyncio.Task[int]]()
            starting = asyncio.create_task(supervisor.start(keepers))
            try:
                await asyncio.wait(
                    [signals, starting], return_when=asyncio.FIRST_COMPLETED
                )
                if not any(task.done() for task in (signals, *keepers)):
                    console.good(
                        f"The bot runs in {workers} processes, and publishes in 1."
                    )
                await asyncio.wait(
                    [signals, *keepers], return_when=asyncio.FIRST_COMPLETED
                )
                failed = [task.result() for task in keepers if task.done()]
            finally:
                starting.cancel()
                if listener is not None:
                    # New connections are refused at once instead of left waiting.
                    listener.close()
                await supervisor.stop(keepers)
            if signals.done():
                signals.result()
            signals.cancel()
            return failed[0] if failed else 0


def worker_of(text: str) -> Worker:
    """Return what `run_workers` wrote for one process."""
    part, fd, health = text.split(":", 2)
    listener = socket.socket(fileno=int(fd)) if int(fd) >= 0 else None
    return Worker(Part(part), listener, health)


def config_of(config: BotConfig) -> BotConfig:
    """Return the settings of one of several processes."""
    # One connection each: the others take over while it is replaced.
    return replace(config, sockets=1)


def say_ready() -> None:
    """Tell the process that started this one, and end with it."""
    loop = asyncio.get_running_loop()

    def gone() -> None:
        # Nothing is ever written there: readable means that it was closed.
        loop.remove_reader(sys.stdin.fileno())
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(sys.stdin.fileno(), gone)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()


def _child(name: str, given: list[str], part: Part, fd: int, health: str) -> Child:
    words = ["-m", "twokey", *given, "--worker", f"{part}:{fd}:{health}"]
    return Child(name, words, [fd] if fd >= 0 else [])


def _globals(command: CommandContext) -> list[str]:
    config = ["--config", str(command.config)] if command.config else []
    return [*config, *(["--debug"] if command.debug else [])]


def _listener(opened: ExitStack, config: BotConfig) -> socket.socket | None:
    if config.mode is not SlackMode.HTTP and config.port is None:
        return None
    port = HTTP_PORT if config.port is None else config.port
    return opened.enter_context(shared_listener(config.host, port))


def _ensure_sockets(config: BotConfig, workers: int) -> None:
    if config.mode is SlackMode.SOCKET and workers > SLACK_SOCKETS:
        raise SettingsError(
            f"Slack lets an app have {SLACK_SOCKETS} connections in Socket Mode, and "
            f"each of {workers} workers needs one; start fewer, or use "
            "'slack: {mode: http}'."
        )
