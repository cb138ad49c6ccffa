"""Our processes never search their imported modules for unreachable objects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

STARTED = """
import gc, sys
from importlib import import_module
from keyturn.cli.main import run

async def stopped(*_, **__):
    print("frozen", gc.get_freeze_count(), gc.get_threshold()[0])

import_module("keyturn.cli." + sys.argv[1]).until_stopped = stopped
sys.exit(run())
"""

SPARED = """
import gc, weakref
from keyturn.gateway.garbage_collection import spare_what_is_there

class Knot:
    def __init__(self):
        self.me = self

gc.disable()
before, kept = weakref.ref(Knot()), Knot()
spare_what_is_there()
after = weakref.ref(Knot())
gc.collect()
print(before() is None, after() is None, gc.get_freeze_count() > 1000)
"""


def printed(folder: Path, code: str, *words: str) -> str:
    """Run a program in a separate process; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    return done.stdout


def test_what_is_unreachable_is_still_found_and_what_is_there_is_spared(
    tmp_path: Path,
) -> None:
    assert printed(tmp_path, SPARED).split() == ["True"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("gateway",), ("run", "--sandbox", "--port", "0")], ids=lambda one: one[0]
)
def test_a_started_process_has_spared_its_imports(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "keyturn.yml").write_text(
        "policy: {version: 1, defaults: {channel: C0APPROVALS, needs: [U0ANA]}}\n",
        encoding="utf-8",
    )

    lines = printed(tmp_path, STARTED, *words).splitlines()

    [line] = [one for one in lines if one.startswith("frozen ")]
    _, frozen, new_objects = line.split()
    assert int(frozen) > 100_000
    assert int(new_objects) > 700
