"""Type commands in a folder, with and without a store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keyturn.cli.main import USAGE, run
from keyturn.gateway.store.store import Store
from tests.store_secrets import ENV, SECRETS


class Shown(NamedTuple):
    """The exit code of a command, and its output."""

    code: int
    out: str
    err: str


class Shell:
    """A shell in a folder.

    Attributes:
        env: variables of all its commands.
    """

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.env: dict[str, str] = {}
        self._capsys = capsys

    def __call__(self, *words: str, **env: str) -> Shown:
        """Run ``keyturn WORDS``."""
        self._capsys.readouterr()
        code = run(words, {**self.env, **env})
        shown = self._capsys.readouterr()
        return Shown(code, shown.out, shown.err)

    def write(self, text: str, name: str = "keyturn.yml") -> Path:
        """Write a file in the folder."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def said(self, *words: str) -> str:
        """Return the output of a command that succeeds."""
        shown = self(*words)
        assert shown.code == 0, shown
        return shown.out

    def refused(self, *words: str, **env: str) -> str:
        """Return the error of a command that is refused."""
        shown = self(*words, **env)
        assert shown.code == USAGE, shown
        return shown.err

    def found(self, *words: str) -> Any:
        """Return the JSON of a command that succeeds."""
        return json.loads(self.said(*words, "--json"))

    def checks(self, *words: str) -> dict[str, tuple[str, str]]:
        """Return the state and the text of each check of the doctor."""
        shown = self("doctor", "--json", *words)
        document = json.loads(shown.out)
        assert document["ok"] is (shown.code == 0)
        return {one["name"]: (one["state"], one["text"]) for one in document["checks"]}

    def do(self, work: Callable[[Store], Awaitable[object]]) -> None:
        """Do something in the store, as another process would."""

        async def done() -> None:
            store = Store(self.env["KEYTURN_REDIS_URL"], secrets=SECRETS)
            await work(store)
            await store.close()

        asyncio.run(done())


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """Give a shell in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)


@pytest.fixture
def operator(shell: Shell, empty_url: str) -> Shell:
    """Give a shell with settings, on a machine that reaches an empty store."""
    shell.write("policy: {version: 1}\n")
    shell.env = {**ENV, "KEYTURN_REDIS_URL": empty_url}
    return shell
