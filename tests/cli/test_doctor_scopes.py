"""The doctor reports missing and unneeded scopes of the Slack app."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from keyturn.bot.manifest import DIRECT_MESSAGES, SCOPES
from tests.cli.conftest import Shell
from tests.cli.test_cli import POLICY

ALL = ",".join(SCOPES)


@pytest.fixture
def home(shell: Shell, empty_url: str) -> Shell:
    shell.write(POLICY, "policy.yml")
    shell.env = {
        "KEYTURN_REDIS_URL": empty_url,
        "SLACK_BOT_TOKEN": "xoxb-1",
        "SLACK_APP_TOKEN": "xapp-1",
    }
    return shell


@pytest.mark.parametrize(
    ("granted", "state", "text"),
    [
        ("chat:write", "bad", "the app lacks app_mentions:read, channels:history"),
        (ALL, "good", "all are granted"),
        (f"{ALL},files:read", "good", "not needed: files:read"),
        ("", "skipped", "Slack did not return"),
    ],
)
async def test_the_doctor_compares_the_granted_scopes(
    home: Shell, granted: str, state: str, text: str
) -> None:
    found, told = (await checked(home, granted))["Slack scopes"]

    assert (found, text in told) == (state, True)


@pytest.mark.parametrize(
    ("notify", "state", "text"),
    [
        ("mention", "good", "all are granted"),
        ("dm", "bad", "the app lacks im:write; add"),
    ],
)
async def test_direct_messages_need_a_scope_only_where_the_policy_has_them(
    home: Shell, notify: str, state: str, text: str
) -> None:
    rule = f"  send_it: {{tier: approve, notify: {notify}}}\n"
    home.write(POLICY.replace("  wire:", rule + "  wire:"), "policy.yml")
    granted = ",".join(one for one in SCOPES if one != DIRECT_MESSAGES)

    found, told = (await checked(home, granted))["Slack scopes"]

    assert (found, text in told) == (state, True)


async def test_the_doctor_refuses_an_app_of_a_whole_organization(home: Shell) -> None:
    checks = await checked(home, ALL, is_enterprise_install=True)

    assert checks["Slack bot token"][0] == "bad"
    assert "Install it in the workspace" in checks["Slack bot token"][1]


async def checked(
    home: Shell, granted: str, **says: bool
) -> dict[str, tuple[str, str]]:
    """Return the doctor's output for an app with these scopes."""

    async def answer(request: web.Request) -> web.Response:
        headers = {"X-OAuth-Scopes": granted}
        reply = {"ok": True, "url": "wss://x", **says}
        return web.json_response(reply, headers=headers)

    app = web.Application()
    app.router.add_post("/api/{method}", answer)
    async with TestServer(app) as server:
        home.env["KEYTURN_SLACK_API_URL"] = str(server.make_url("/api/"))
        return await asyncio.to_thread(home.checks)
