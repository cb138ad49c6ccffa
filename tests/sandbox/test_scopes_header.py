"""A client reads what its token may do, and the bot refuses to start with less."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from keyturn.cli.demo_stack import environment
from keyturn.cli.stack import open_stack
from keyturn.gateway.config import Settings, SlackMode
from keyturn.gateway.errors import SettingsError
from keyturn.sandbox.server import Sandbox

ROOT = Path(__file__).parents[2]


async def test_answers_name_the_scopes_of_the_token() -> None:
    async with Sandbox() as sandbox:
        headers = {"Authorization": f"Bearer {sandbox.bot_token}"}
        url = f"{sandbox.api_url}auth.test"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, headers=headers) as answer,
        ):
            granted = answer.headers["X-OAuth-Scopes"].split(",")

    assert {"chat:write", "commands", "users:read"} <= set(granted)


@pytest.mark.slow
async def test_a_bot_without_a_scope_says_which_and_what_to_do(tmp_path: Path) -> None:
    async with Sandbox() as sandbox:
        await sandbox.control.run({"do": "scopes", "scopes": ["chat:write"]})
        env = environment(sandbox, tmp_path, SlackMode.SOCKET, None)
        settings = Settings.load(ROOT / "keyturn.yml", env)

        with pytest.raises(SettingsError, match=r"lacks the scopes .*users:read"):
            async with open_stack(settings):
                pass
