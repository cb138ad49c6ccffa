"""A client reads what its token may do, and the bot refuses to start with less."""

from __future__ import annotations

from pathlib import Path

import pytest
from slack_sdk.web.async_client import AsyncWebClient

from bot.sandbox.server import Sandbox
from gateway.commands import demo_world
from gateway.config import Settings
from gateway.errors import SettingsError

ROOT = Path(__file__).parents[2]


async def test_answers_name_the_scopes_of_the_token() -> None:
    async with Sandbox() as sandbox:
        client = AsyncWebClient(token=sandbox.bot_token, base_url=sandbox.api_url)

        answer = await client.auth_test()

    granted = answer.headers["X-OAuth-Scopes"].split(",")
    assert {"chat:write", "commands", "users:read"} <= set(granted)


async def test_a_bot_without_a_scope_says_which_and_what_to_do(tmp_path: Path) -> None:
    async with Sandbox() as sandbox:
        await sandbox.control.run({"do": "scopes", "scopes": ["chat:write"]})
        env = demo_world.environment(
            sandbox, tmp_path, demo_world.SlackMode.SOCKET, None
        )
        settings = Settings.load(ROOT / "twokey.yml", env)

        with pytest.raises(SettingsError, match=r"lacks the scopes .*users:read"):
            async with demo_world.open_house(settings):
                pass
