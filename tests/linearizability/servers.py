"""Run ``keyturn bot`` and ``keyturn gateway``, kill them, and keep their logs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.forked import Forked


@dataclass(frozen=True)
class Line:
    """One line of a log, and when it was read: it was written before."""

    at: int
    text: str


class Server:
    """One process of ``keyturn``, which is restarted when it was killed."""

    def __init__(
        self, name: str, words: Iterable[str], folder: Path, env: dict[str, str]
    ) -> None:
        self.log = folder / f"{name}.log"
        self._words, self._folder, self._env = tuple(words), folder, env
        self.lines: list[Line] = []
        self._readers: list[threading.Thread] = []
        self.start()

    def start(self) -> None:
        """Start it; it is ready a while later."""
        self._process = Forked(
            "keyturn", *self._words, cwd=self._folder, env=self._env, merged=True
        )
        reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._readers.append(reader)
        reader.start()

    @property
    def has_ended(self) -> bool:
        """Return True if it ended: killed, or as its store was away at its start."""
        return self._process.returncode is not None

    def kill(self) -> None:
        """End it like a lost machine (kill -9); its log is kept."""
        self._process.send_signal(signal.SIGKILL)
        self._readers[-1].join()

    def _read(self, process: Forked) -> None:
        for text in process.stdout:
            self.lines.append(Line(time.monotonic_ns(), text))
            with self.log.open("a", encoding="utf-8") as log:
                log.write(text)
        process.wait()
