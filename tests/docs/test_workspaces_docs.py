"""The examples of docs/workspaces.md are settings that Keyturn accepts."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from keyturn.cli.workspaces import workspaces_of
from keyturn.gateway.config import Settings
from tests.store_secrets import ENV

PAGE = (Path(__file__).parents[2] / "docs" / "workspaces.md").read_text("utf-8")
SECRETS = {"SLACK_CLIENT_SECRET": "s", "SLACK_SIGNING_SECRET": "s", **ENV}


def test_the_files_of_the_page_are_complete_settings(tmp_path: Path) -> None:
    blocks = re.findall(r"( *)```yaml\n(.*?)```", PAGE, re.DOTALL)
    acme, bot, grid = (textwrap.dedent(text) for _, text in blocks)
    (tmp_path / "acme.yml").write_text(acme, "utf-8")
    (tmp_path / "bot.yml").write_text(bot, "utf-8")
    umbrella = grid.replace("T0123456789", "T9876543210")
    text = f"tenant: umbrella\n{umbrella}"
    (tmp_path / "umbrella.yml").write_text(text, "utf-8")
    settings = Settings.load(tmp_path / "bot.yml", SECRETS)

    found = workspaces_of(settings, SECRETS)

    assert settings.slack_problems() == ()
    assert {team: one.tenant for team, one in found.items()} == {
        "T0123456789": "acme",
        "T9876543210": "umbrella",
    }
    assert found["T9876543210"].slack.organization == "E0123456789"
    assert len(PAGE.split()) <= 600
