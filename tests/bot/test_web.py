"""Of every failure of Slack's Web API it is known what the caller can do about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from keyturn.bot import web as bot_web
from keyturn.bot.config import BotConfig
from keyturn.bot.web import (
    RateLimited,
    Slack,
    SlackError,
    SlackNoResponse,
    SlackRefused,
    identify,
)
from keyturn.gateway.errors import SettingsError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CONFIG = BotConfig(bot_token="xoxb-1", app_token="xapp-1", seal_keys=(b"k" * 16,))


@asynccontextmanager
async def slack_that(handle: Handler) -> AsyncGenerator[tuple[Slack, str]]:
    """Give a Web API whose every answer comes from one function."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        async with aiohttp.ClientSession() as session:
            yield Slack("xoxb-1", api_url=url, session=session), url
    finally:
        await runner.cleanup()


def answering(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        del request
        return web.json_response(body, status=status, headers=headers)

    return handle


def answering_text(text: str, status: int, kind: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(text=text, status=status, content_type=kind)

    return handle


@pytest.mark.parametrize(
    ("handle", "kind", "facts"),
    [
        (
            answering({"ok": False, "error": "channel_not_found"}),
            SlackRefused,
            {"error": "channel_not_found"},
        ),
        (
            answering({"ok": False, "error": "ratelimited"}, 429, {"Retry-After": "7"}),
            RateLimited,
            {"retry_after_s": 7.0},
        ),
        (
            answering({"ok": False, "error": "ratelimited"}),
            RateLimited,
            {"retry_after_s": 30.0},
        ),
        *(
            (
                answering({}, 429, {"Retry-After": asked}),
                RateLimited,
                {"retry_after_s": waited},
            )
            # A header that is wrong must not silence the bot until its next start.
            for asked, waited in (
                ("0", 1.0),
                ("1.5", 1.5),
                ("nan", 1.0),
                ("Wed, 21 Oct 2026 07:28:00 GMT", 30.0),
                ("7200", 3600.0),
                ("inf", 3600.0),
            )
        ),
        (answering({"ok": False, "error": "internal_error"}), SlackNoResponse, {}),
        (answering({"ok": False, "error": "x"}, 503), SlackNoResponse, {}),
        (answering({"ok": False}), SlackNoResponse, {}),
        (answering_text("<html>", 502, "text/html"), SlackNoResponse, {}),
        (answering_text("{not json", 200, "application/json"), SlackNoResponse, {}),
    ],
)
async def test_a_failure_says_whether_it_may_be_tried_again(
    handle: Handler, kind: type[SlackError], facts: dict[str, object]
) -> None:
    async with slack_that(handle) as (slack, _):
        with pytest.raises(SlackError) as caught:
            await slack.call("chat.postMessage", channel="C1", text="canary")

    assert type(caught.value) is kind
    assert {name: getattr(caught.value, name) for name in facts} == facts
    assert "canary" not in str(caught.value)
    assert "xoxb" not in str(caught.value)


async def test_no_answer_in_time_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        del request
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(bot_web, "TIMEOUT_S", 0.05)
    async with slack_that(hang) as (slack, url):
        with pytest.raises(SlackNoResponse):
            await slack.call("auth.test")
        with pytest.raises(SlackNoResponse):
            await slack.respond(url, {"text": "x"})


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ('{"error": "expired_url", "ok": false}', SlackRefused),
        ('{"ok":false,"error":"used_url"}', SlackRefused),
        ('{"ok": false}', SlackNoResponse),
        ("<html>Please sign in.</html>", SlackNoResponse),
    ],
)
async def test_a_strangers_200_is_no_consent(told: str, kind: type[SlackError]) -> None:
    async with slack_that(answering_text(told, 200, "text/html")) as (slack, url):
        with pytest.raises(kind):
            await slack.respond(url, {"text": "x"})


@pytest.mark.parametrize("told", ["ok", "", '{"ok":true}'])
async def test_a_response_url_that_took_it_says_so(told: str) -> None:
    async with slack_that(answering_text(told, 200, "text/html")) as (slack, url):
        await slack.respond(url, {"text": "x"})


async def test_what_a_card_says_follows_no_redirect() -> None:
    paths: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with slack_that(redirect) as (slack, url):
        with pytest.raises(SlackRefused):
            await slack.respond(url, {"text": "x"})

    assert len(paths) == 1


async def test_nothing_is_tried_again_by_itself() -> None:
    count = 0

    async def cut(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with slack_that(cut) as (slack, _):
        with pytest.raises(SlackNoResponse):
            await slack.call("chat.postMessage", channel="C1", text="x")

    assert count == 1


async def test_missing_scopes_are_named() -> None:
    reply = {"ok": True, "team_id": "T1", "user_id": "U1", "bot_id": "B1"}
    headers = {"X-OAuth-Scopes": "chat:write, commands,users:read"}
    async with slack_that(answering(reply, headers=headers)) as (slack, _):
        with pytest.raises(SettingsError) as caught:
            await identify(slack, CONFIG)

    named = "lacks the scopes app_mentions:read, im:history, usergroups:read;"
    assert named in str(caught.value)


async def test_an_app_of_a_whole_organization_is_refused_at_start() -> None:
    """Its people act in workspaces, each of which would count as another one."""
    reply = {"ok": True, "team_id": "E1", "is_enterprise_install": True}
    async with slack_that(answering(reply)) as (slack, _):
        with pytest.raises(SettingsError, match="whole organization"):
            await identify(slack, CONFIG)


async def test_the_refusal_of_a_token_is_void_for_another_token_only() -> None:
    async with slack_that(answering({"ok": False, "error": "token_revoked"})) as (
        slack,
        _,
    ):
        with pytest.raises(SlackRefused):
            await slack.test()

        slack.use_token("xoxb-1")
        assert slack.token_error == "token_revoked"

        slack.use_token("xoxb-2")
        assert slack.token_error == ""
