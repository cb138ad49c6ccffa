"""Settings of several workspaces are checked before the bot starts, and by doctor."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from keyturn.cli.stack import bot_config, ensure_configured
from keyturn.cli.workspaces import serving_workspaces, workspaces_of
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.store.store import Store
from tests.cli.conftest import Shell
from tests.store_secrets import ENV
from tests.workspaces_world import world

COMPLETE = {
    "mode": "http",
    "url": "https://bot.example.com",
    "client_id": "1.2",
    "workspaces": ["a.yml", "b.yml"],
}
SECRETS = {"SLACK_CLIENT_SECRET": "s", "SLACK_SIGNING_SECRET": "s", **ENV}


def written(folder: Path, name: str, **settings: object) -> None:
    (folder / name).write_text(json.dumps(settings), "utf-8")


def loaded(
    folder: Path, env: dict[str, str] | None = None, **slack: object
) -> Settings:
    written(folder, "keyturn.yml", slack={**COMPLETE, **slack})
    return Settings.load(folder / "keyturn.yml", SECRETS if env is None else env)


@pytest.mark.parametrize(
    ("slack", "without", "names"),
    [
        ({"mode": "socket"}, "", "set 'slack.mode: http'"),
        ({"url": None}, "", "'slack.url' is not set"),
        ({"client_id": ""}, "", "'slack.client_id' is not set"),
        ({}, "SLACK_CLIENT_SECRET", "SLACK_CLIENT_SECRET is not set"),
        ({}, "SLACK_SIGNING_SECRET", "SLACK_SIGNING_SECRET is not set"),
        ({}, "KEYTURN_SECRET", "it encrypts the tokens of the workspaces; make one"),
    ],
)
async def test_the_bot_does_not_start_without_what_an_installation_needs(
    tmp_path: Path, slack: dict[str, object], without: str, names: str
) -> None:
    env = {name: value for name, value in SECRETS.items() if name != without}
    settings = loaded(tmp_path, env, **slack)

    with pytest.raises(SettingsError, match=names):
        async with serving_workspaces(settings, env, insecure_dev=True):
            pass


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"tenant": "a", "slack": {"team": "T0B"}}, "have the same 'tenant', 'a'"),
        ({"tenant": "b", "slack": {"team": "T0A"}}, "have the same 'slack.team'"),
        ({"tenant": "b"}, "does not name its workspace; set 'slack.team' there"),
    ],
)
def test_each_workspace_has_its_own_tenant(
    tmp_path: Path, other: dict[str, object], problem: str
) -> None:
    written(tmp_path, "a.yml", tenant="a", slack={"team": "T0A"})
    written(tmp_path, "b.yml", **other)

    with pytest.raises(SettingsError, match=problem):
        workspaces_of(loaded(tmp_path), SECRETS)


def test_a_bots_variable_does_not_merge_workspaces(tmp_path: Path) -> None:
    written(tmp_path, "a.yml", tenant="a", slack={"team": "T0A"})
    written(tmp_path, "b.yml", tenant="b", slack={"team": "T0B"})
    env = {
        **SECRETS,
        "KEYTURN_TENANT": "x",
        "KEYTURN_SLACK_TEAM": "T0X",
        "KEYTURN_REDIS_URL": "redis://r",
    }

    found = workspaces_of(loaded(tmp_path, env), env)

    assert {team: one.tenant for team, one in found.items()} == {"T0A": "a", "T0B": "b"}
    assert {one.store_url for one in found.values()} == {"redis://r"}


def test_keyturn_run_refuses_settings_of_workspaces(tmp_path: Path) -> None:
    for refuse in (bot_config, ensure_configured):
        with pytest.raises(SettingsError, match="run 'keyturn bot'"):
            refuse(loaded(tmp_path))


@pytest.mark.filterwarnings("ignore:BasicAuth:DeprecationWarning")
async def test_the_doctor_reports_the_installation_of_each_workspace(
    tmp_path: Path, shell: Shell, store: Store
) -> None:
    async with world(shell.folder, store, "A", "B", "C") as opened:
        async with opened.running():
            for team in ("T0A", "T0B"):
                await opened.browser.install(team)
            await opened.serves("A", "B")
        await opened.sides["B"].sandbox.control.uninstall_app()
        shell.env = opened.env()
        (opened.folder / "bot.yml").rename(shell.folder / "keyturn.yml")

        checks = await asyncio.to_thread(shell.checks)

    page = f"install it at {opened.url}/slack/install"
    assert checks["workspace T0A"] == (
        "good",
        "tenant tenant-a; installed in T0A; the token works",
    )
    assert checks["workspace T0B"][0] == "bad"
    assert "refuses its token with 'token_revoked'" in checks["workspace T0B"][1]
    assert checks["workspace T0C"] == ("bad", f"The app is not installed there; {page}")
    assert "policy" not in checks
