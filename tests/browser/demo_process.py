"""Run `keyturn demo` as a separate process, as a newcomer does."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import yaml

from tests.forked import Forked

ROOT = Path(__file__).parents[2]
TWO_PEOPLE, SEVERAL = "suggestion-2", "suggestion-1"
STOP_S = 30


class Demo:
    """One demo in one folder; it can be stopped, killed and started again."""

    def __init__(
        self, folder: Path, mode: str = "socket", env: dict[str, str] | None = None
    ) -> None:
        self._folder = folder
        self.data = folder / ".keyturn" / "demo"
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
        path = self.data / "effects.jsonl"
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(STOP_S)


def hasty_demo(folder: Path, mode: str = "socket") -> Demo:
    """Return a demo with quick reminders; an e-mail is pending for half a minute.

    A refund that takes two people reminds after 2 seconds and calls the senior after 4;
    an e-mail is announced in #general after 3.
    """
    settings = yaml.safe_load((ROOT / "keyturn.yml").read_text(encoding="utf-8"))
    policy: dict[str, Any] = settings["policy"]
    two: dict[str, Any] = policy["tiers"]["escalate"]
    two |= {"expires_in": "200s", "remind_at": "1%", "escalate_at": "2%"}
    mail: dict[str, Any] = policy["tools"]["send_email"]
    mail |= {"expires_in": "30s"}
    one: dict[str, Any] = policy["tiers"]["approve"]
    one |= {"remind_at": "5%", "escalate_at": "10%"}
    path = folder / "policy.yml"
    path.write_text(yaml.safe_dump(policy, sort_keys=False), encoding="utf-8")
    return Demo(folder, mode, {"KEYTURN_POLICY": str(path)})
