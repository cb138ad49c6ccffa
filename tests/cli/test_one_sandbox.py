"""Two demos in one folder would share a store, and each show half of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.cli.demo_stack import KEPT, open_demo_stack
from keyturn.cli.sandbox import only_user
from keyturn.gateway.errors import SettingsError
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "keyturn.yml"


@pytest.fixture
def folder(shell: Shell) -> Path:
    """Return the folder that a demo in the current folder keeps its things in."""
    found = shell.folder / ".keyturn" / "demo"
    found.mkdir(parents=True)
    return found


async def test_a_second_demo_in_the_folder_is_refused_and_names_the_first(
    folder: Path,
) -> None:
    async with open_demo_stack(CONFIG, folder) as first:
        with pytest.raises(SettingsError) as refused:
            async with open_demo_stack(CONFIG, folder):
                pass

    assert f"already, at {first.sandbox.url}/" in str(refused.value)
    # A demo that ended leaves the folder to the next.
    async with open_demo_stack(CONFIG, folder):
        pass


@pytest.mark.parametrize("option", [[], ["--fresh"]])
def test_the_command_leaves_a_demo_that_runs_alone(
    folder: Path, shell: Shell, option: list[str]
) -> None:
    words = ("--config", str(CONFIG), "demo", "--port", "0")
    with only_user(folder / KEPT) as lock:
        lock.write("http://127.0.0.1:8765/")

        assert "already, at http://127.0.0.1:8765/" in shell.refused(*words, *option)

    assert (folder / f"{KEPT}.lock").exists()


def test_a_kept_workspace_is_used_by_one_sandbox_at_a_time(shell: Shell) -> None:
    kept = shell.folder / "workspace.json"
    with only_user(kept):
        told = shell.refused("sandbox", "--port", "0", "--keep", str(kept))

    assert "workspace.json' already" in told


def test_where_nothing_can_be_written_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match=r"cannot be written \(No such file"),
        only_user(tmp_path / "gone" / KEPT),
    ):
        pass
