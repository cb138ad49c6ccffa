"""The real client of Codex obeys the decisions, with real tool calls.

`KEYTURN_CODEX` names the program; without it, these tests are skipped.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keyturn.connect.claude_settings import codex_settings
from tests.connect.coding_agents.conftest import Hooks
from tests.connect.coding_agents.exchanges import CODEX_CASES, FILE, keep, record
from tests.connect.coding_agents.fake_responses import FakeResponses, responding
from tests.patience import WAIT_S

PROGRAM = os.environ.get("KEYTURN_CODEX", "")
TRUSTED = "--dangerously-bypass-hook-trust"
WRITE = ("exec_command", {"cmd": f"echo one > {FILE}"})

pytestmark = [
    pytest.mark.deep,
    pytest.mark.xdist_group("codex"),
    pytest.mark.skipif(not PROGRAM, reason="KEYTURN_CODEX names no program"),
]


class Codex:
    """A client with a separate home and a folder to work in."""

    def __init__(self, home: Path, model: FakeResponses, hooks: Hooks) -> None:
        self.home, self.work, self.model = home, home / "work", model
        self.url, self.key = hooks.stack.url, hooks.key

    async def run(self, *options: str, settings: str | None = None) -> None:
        """Run it once; it ends when its model is done."""
        self.work.mkdir()
        (self.home / "config.toml").write_text(
            'model_provider = "fake"\n'
            'approval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
            '[model_providers.fake]\nname = "fake"\nwire_api = "responses"\n'
            f'base_url = "{self.model.url}/v1"\nenv_key = "FAKE_KEY"\n'
            + (codex_settings() if settings is None else settings)
        )
        running = await asyncio.create_subprocess_exec(
            *(PROGRAM, "exec", "--skip-git-repo-check", *options, "Go."),
            cwd=self.work,
            env={
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": ":".join(sys.path),
                "HOME": str(self.home),
                "CODEX_HOME": str(self.home),
                "FAKE_KEY": "x",
                "KEYTURN_GATEWAY": self.url,
                "KEYTURN_API_KEY": self.key,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(10 * WAIT_S):
                await running.wait()
        finally:
            if running.returncode is None:
                running.kill()

    @property
    def made(self) -> str | None:
        """Return what the calls have written; None for nothing."""
        file = self.work / FILE
        return file.read_text() if file.exists() else None


@pytest.mark.parametrize("name", CODEX_CASES)
async def test_the_client_does_what_people_decide(
    hooks: Hooks, tmp_path: Path, name: str
) -> None:
    case = CODEX_CASES[name]
    exchanges = record(hooks.stack.api)
    async with responding(*case.calls[0]) as model:
        codex = Codex(tmp_path, model, hooks)
        decisions = asyncio.create_task(hooks.deciding([*case.ends]))
        await codex.run(TRUSTED)
        await decisions

    assert codex.made == case.made
    for text in case.told:
        assert text in model.inputs()
    assert [await hooks.state(at) for at in range(len(case.ends))] == [*case.states]
    keep(name, exchanges, tmp_path)


async def test_an_outage_stops_every_call(hooks: Hooks, tmp_path: Path) -> None:
    async with responding(WRITE) as model:
        codex = Codex(tmp_path, model, hooks)
        codex.url = "http://127.0.0.1:1"
        await codex.run(TRUSTED)

    assert codex.made is None
    assert "does not answer" in model.inputs()


async def test_a_missing_program_runs_nothing(hooks: Hooks, tmp_path: Path) -> None:
    missing = codex_settings().replace("keyturn hook", "keyturn-is-not-here hook")
    async with responding(WRITE) as model:
        codex = Codex(tmp_path, model, hooks)
        await codex.run(TRUSTED, settings=missing)

    assert codex.made is None


async def test_an_untrusted_hook_asks_nobody(hooks: Hooks, tmp_path: Path) -> None:
    """docs/coding-agents.md recommends a managed file, because this is seen."""
    async with responding(WRITE) as model:
        codex = Codex(tmp_path, model, hooks)
        await codex.run()

    assert codex.made == "one\n"
    assert await hooks.opened() == []
