"""Gateway, bot and agent in three processes end as one process does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from keyturn.cli.demo_scripts import approve, edit
from tests.apart.three_processes import ROOT, play_apart
from tests.forked import Forked
from tests.levels import sample

pytestmark = pytest.mark.slow


def played(script: str) -> list[dict[str, Any]]:
    """Return the events of a script of the demo."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = Forked("keyturn", "demo", "--script", script, "--json", cwd=ROOT, env=env)
    shown = run.stdout.read()
    assert run.wait() == 0, shown
    return [json.loads(line) for line in shown.splitlines()]


def told(events: list[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    """Return the parts that are equal in every run."""
    return [
        (one["event"], one.get("action"), one.get("errors"))
        for one in events
        if not one["event"].startswith("script.")
    ]


async def test_three_processes_end_as_one_does(tmp_path: Path) -> None:
    apart = list[dict[str, Any]]()

    def say(event: str, **fields: object) -> None:
        apart.append({"event": event, **fields})

    scripts = sample((edit, approve), 1)
    await play_apart(tmp_path, say, scripts)

    alone = [one for script in scripts for one in told(played(script.__name__))]
    assert told(apart) == alone
