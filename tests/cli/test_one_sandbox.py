"""A demo is alone in its folder, which is private, and has a policy's people."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyturn.cli.demo_stack import KEPT, holders, open_demo_stack, seed
from keyturn.cli.sandbox import only_user
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.policy.load import load_policy
from keyturn.sandbox.samples import sample_workspace
from tests.cli.conftest import Shell
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "keyturn.yml"


@pytest.fixture
def folder(shell: Shell) -> Path:
    """Return the folder that a demo in the current folder keeps its things in."""
    found = shell.folder / ".keyturn" / "demo"
    found.mkdir(parents=True)
    return found


async def test_a_second_demo_in_a_folder_names_the_first(folder: Path) -> None:
    async with open_demo_stack(CONFIG, folder) as first:
        with pytest.raises(SettingsError) as refused:
            async with open_demo_stack(CONFIG, folder):
                pass

    assert f"already, at {first.sandbox.url}/" in str(refused.value)
    # A demo that ended leaves the folder to the next.
    async with open_demo_stack(CONFIG, folder):
        pass


@pytest.mark.parametrize("option", [[], ["--fresh"]])
def test_a_running_demo_stays(folder: Path, shell: Shell, option: list[str]) -> None:
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


EXAMPLE = ROOT / "policy.example.yml"
ROLES = """\
version: 1
defaults: {needs: [first, S0DIRECT], channel: "#new-place"}
roles:
  first: {usergroups: [S0FIRST]}
  second: {usergroups: [S0SECOND, S0SENIOR], users: [U0ANA, U0NEWCOMER]}
tools: {wire: {channel: C0ELSEWHERE}, mail: {channel: "#general"}}
"""


def test_every_role_of_the_example_is_held_by_somebody() -> None:
    policy, workspace = load_policy(EXAMPLE.read_text("utf-8"), "p"), sample_workspace()

    seed(workspace, policy)

    lines = holders(policy, workspace)
    assert lines == ["support: Ana Alves, Ben Boer", "senior: Lead, Head"]


def test_the_first_role_and_later_ones_are_different_people() -> None:
    policy, workspace = load_policy(ROLES, "p"), sample_workspace()

    seed(workspace, policy)

    assert holders(policy, workspace) == [
        "first: Ana Alves, Ben Boer",
        "second: Ana Alves, Newcomer, Chloé Chen",
    ]
    assert workspace.groups["S0DIRECT"].users == ("U0ANA", "U0BEN")
    assert workspace.groups["S0SENIOR"].users == ("U0CHLOE",)
    assert workspace.users["U0NEWCOMER"].is_full_member


def test_channels_are_added_once_and_the_bot_is_in_them() -> None:
    policy, workspace = load_policy(ROLES, "p"), sample_workspace()

    seed(workspace, policy)
    seed(workspace, policy)

    names = [each.name for each in workspace.channels.values() if not each.is_im]
    assert sorted(names) == [
        "agent-approvals", "c0elsewhere", "finance", "general", "new-place",
    ]  # fmt: skip
    new = [each for each in workspace.channels.values() if each.name == "new-place"]
    assert workspace.app.bot_user in new[0].members
    assert workspace.channels["C0ELSEWHERE"].members == new[0].members
    assert "U0NEWCOMER" in new[0].members


@pytest.mark.parametrize("umask", [0o000, 0o022])
async def test_only_this_user_can_open_its_folders(tmp_path: Path, umask: int) -> None:
    top = tmp_path / "new"
    before = os.umask(umask)
    try:
        async with open_demo_stack(CONFIG, top / "below" / "demo"):
            # The store's own server makes this one, inside a private folder.
            found = [top, *(path for path in top.rglob("*") if path.is_dir())]
            found = [path for path in found if path.name != "appendonlydir"]
            modes = {str(path): path.stat().st_mode & 0o777 for path in found}
    finally:
        os.umask(before)

    assert len(modes) > 3
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


async def test_the_bot_listens_on_the_port_of_the_settings(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "keyturn.yml"
    text = CONFIG.read_text(encoding="utf-8").replace(
        "examples/", f"{CONFIG.parent}/examples/"
    )
    config.write_text(f"slack: {{port: {port}}}\n{text}", encoding="utf-8")

    async with open_demo_stack(config, tmp_path / "demo") as demo:
        assert f":{port}/" in demo.stack.bot.url
