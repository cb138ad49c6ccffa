"""A stack on a local Slack keeps its folders private and listens at its address."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyturn.cli.demo_stack import open_demo_stack
from tests.ports import free_port

CONFIG = Path(__file__).parents[2] / "keyturn.yml"


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
