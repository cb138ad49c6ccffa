"""The doctor reports missing and unneeded scopes of the Slack app."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from keyturn.bot.manifest import DIRECT_MESSAGES, SCOPES
from keyturn.cli.reviewer_checks import State
from tests.cli.test_cli import POLICY, doctor, home

__all__ = ["home"]


@pytest.mark.parametrize(
    ("granted", "state", "text"),
    [
        (
            "chat:write,commands",
            State.BAD,
            "the app lacks app_mentions:read, channels:history",
        ),
        (",".join(SCOPES), State.GOOD, "all are granted"),
        (",".join((*SCOPES, "files:read")), State.GOOD, "not needed: files:read"),
        ("", State.SKIPPED, "Slack did not return"),
    ],
)
async def test_the_doctor_compares_the_granted_scopes(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    empty_url: str,
    granted: str,
    state: State,
    text: str,
) -> None:
    checks = await checked_scopes(capsys, empty_url, granted)

    assert checks["Slack scopes"][0] == state
    assert text in checks["Slack scopes"][1]


@pytest.mark.parametrize(
    ("notify", "state", "text"),
    [
        ("mention", State.GOOD, "all are granted"),
        ("dm", State.BAD, "the app lacks im:write; add"),
    ],
)
async def test_direct_messages_need_a_scope_only_where_the_policy_has_them(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    empty_url: str,
    notify: str,
    state: State,
    text: str,
) -> None:
    rule = f"  send_it: {{tier: approve, notify: {notify}}}\n"
    policy = POLICY.replace("  wire:", rule + "  wire:")
    (home / "policy.yml").write_text(policy, encoding="utf-8")
    granted = ",".join(one for one in SCOPES if one != DIRECT_MESSAGES)

    checks = await checked_scopes(capsys, empty_url, granted)

    assert checks["Slack scopes"][0] == state
    assert text in checks["Slack scopes"][1]


async def test_the_doctor_refuses_an_app_of_a_whole_organization(
    home: Path, capsys: pytest.CaptureFixture[str], empty_url: str
) -> None:
    granted = ",".join(SCOPES)

    checks = await checked_scopes(
        capsys, empty_url, granted, is_enterprise_install=True
    )

    assert checks["Slack bot token"][0] == State.BAD
    assert "Install it in the workspace" in checks["Slack bot token"][1]


async def checked_scopes(
    capsys: pytest.CaptureFixture[str], empty_url: str, granted: str, **says: bool
) -> dict[str, tuple[str, str]]:
    """Return the doctor's output for an app with these scopes."""

    async def answer(request: web.Request) -> web.Response:
        headers = {"X-OAuth-Scopes": granted}
        reply = {"ok": True, "url": "wss://x", **says}
        return web.json_response(reply, headers=headers)

    app = web.Application()
    app.router.add_post("/api/{method}", answer)
    async with TestServer(app) as server:
        env = {
            "KEYTURN_REDIS_URL": empty_url,
            "KEYTURN_SLACK_API_URL": str(server.make_url("/api/")),
            "SLACK_BOT_TOKEN": "xoxb-1",
            "SLACK_APP_TOKEN": "xapp-1",
        }
        _, checks = await doctor(capsys, env)
    return checks
