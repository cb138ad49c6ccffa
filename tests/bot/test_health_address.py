"""Health and metrics on a separate address are not on the port for Slack."""

from __future__ import annotations

import aiohttp
import pytest

from keyturn.bot.app import SlackBot
from keyturn.gateway.config import SlackMode
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.service_settings import MetricsSettings
from tests.bot.bot_stack import Stack

PATHS = ("/healthz", "/readyz", "/metrics", "/slack/events")


async def statuses(url: str) -> list[int]:
    found: list[int] = []
    async with aiohttp.ClientSession() as session:
        for path in PATHS:
            async with session.get(f"{url}{path}") as answer:
                found.append(answer.status)
    return found


def listening_at(address: str) -> MetricsSettings:
    return MetricsSettings.model_validate({"listen": address})


def port_of(bot: SlackBot) -> str:
    return bot.url.removesuffix("/slack/events")


@pytest.mark.parametrize("mode", SlackMode)
async def test_one_address_shows_them(stack: Stack, mode: SlackMode) -> None:
    apart = listening_at("127.0.0.1:0")
    async with stack.running(mode=mode) as bot:
        assert await statuses(port_of(bot)) == [200, 200, 200, 404]
        assert bot.health_url == ""
    async with stack.running(mode=mode, metrics=apart) as bot:
        assert await statuses(port_of(bot)) == [200, 404, 404, 404]
        assert await statuses(bot.health_url) == [200, 200, 200, 404]


async def test_without_a_port_for_slack_they_have_theirs(stack: Stack) -> None:
    apart = listening_at("127.0.0.1:0")
    async with stack.running(mode=SlackMode.SOCKET, port=None, metrics=apart) as bot:
        assert bot.url == ""
        assert await statuses(bot.health_url) == [200, 200, 200, 404]


async def test_an_address_in_use_is_named(stack: Stack) -> None:
    async with stack.running() as bot:
        taken = port_of(bot).removeprefix("http://")
        with pytest.raises(SettingsError, match=rf"{taken}.*'metrics.listen'"):
            async with stack.running(metrics=listening_at(taken)):
                pass
