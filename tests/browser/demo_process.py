"""Run `keyturn demo` as a separate process, as a newcomer does."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from tests.forked import Forked

ROOT = Path(__file__).parents[2]
STOP_S = 30


class Demo:
    """One demo in one folder; it can be stopped, killed and started again."""

    def __init__(
        self, folder: Path, mode: str = "socket", env: dict[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._mode = mode
        self._env = env or {}
        self._process: Forked | None = None
        self.options: tuple[str, ...] = ()
        self.program = "keyturn"
        self.url = ""
        self.port = 0

    def start(self) -> None:
        """Start it and wait for the link that it prints."""
        words = ["demo", "--port", str(self.port), "--mode", self._mode, *self.options]
        self._process = Forked(
            *(self.program, "--config", str(ROOT / "keyturn.yml"), *words),
            cwd=self._folder,
            env={**os.environ, **self._env},
            merged=True,
        )
        said: list[str] = []
        for line in self._process.stdout:
            said.append(line)
            found = re.search(r"(http://[\d.]+:(\d+))/", line)
            if found:
                self.url, self.port = found[1], int(found[2])
                return
        raise AssertionError("The demo printed no link:\n" + "".join(said))

    def stop(self) -> None:
        """Press Ctrl+C and wait until everything has stopped."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill it with -9, in the middle of its work."""
        self._end(signal.SIGKILL)

    def effects(self) -> list[dict[str, Any]]:
        """Return every effect that a tool had, in order."""
        path = self._folder / ".keyturn" / "demo" / "effects.jsonl"
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(STOP_S)
