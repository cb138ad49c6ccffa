"""The bot starts or names the missing setting, tells its health, and stops in order."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from keyturn.bot import web
from keyturn.bot.app import SlackBot
from keyturn.bot.config import BotConfig
from keyturn.bot.delivery.publisher import Publisher
from keyturn.bot.ids import Action
from keyturn.bot.listener_context import Tasks
from keyturn.bot.web import CHECKED_S, REJECTED_S
from keyturn.gateway.config import SlackMode
from keyturn.gateway.errors import SettingsError, StoreUnavailable
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.report.process_check import NO_WRITES
from keyturn.gateway.service_settings import MetricsSettings
from keyturn.gateway.store.connection import usable
from keyturn.sandbox.client import UserActionFailed
from tests.bot.bot_stack import CHANNEL, Stack
from tests.conftest import eventually
from tests.panics import failing


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bot_token": ""}, "bot_token"),
        ({"bot_token": "xapp-1"}, "bot_token"),
        ({"app_token": ""}, "app_token is empty"),
        ({"app_token": "xoxb-1"}, "app_token"),
        ({"mode": SlackMode.HTTP, "signing_secret": " "}, "signing_secret is empty"),
        ({"seal_keys": (b"short",)}, "seal_keys"),
    ],
)
def test_a_bad_secret_is_named_and_not_shown(given: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {
        "bot_token": "xoxb-1",
        "app_token": "xapp-1",
        "seal_keys": (b"k" * 16,),
    }

    with pytest.raises(ValueError, match=words) as caught:
        BotConfig(**(good | given))

    assert not re.search(r"xapp-1|xoxb-1|short'", str(caught.value))


def test_secrets_are_not_in_the_settings_repr() -> None:
    key = b"a canary as a key"
    config = BotConfig(
        bot_token="xoxb-canary", app_token="xapp-canary", seal_keys=(key,)
    )

    assert "canary" not in repr(config)


async def revoke(stack: Stack) -> None:
    await stack.sandbox.control.revoke_bot_token()


@pytest.mark.parametrize(
    ("harm", "changes", "words"),
    [
        (revoke, {}, "Slack refused SLACK_BOT_TOKEN"),
        (None, {"team": "T0ELSE"}, "of the workspace 'T0SANDBOX'"),
        (None, {"api_url": "http://127.0.0.1:9/api/"}, "Slack does not answer"),
        (None, {"host": "203.0.113.1"}, "203.0.113.1:0 cannot be used"),
        (
            None,
            {"mode": SlackMode.SOCKET, "app_token": "xapp-wrong"},
            "Slack refused SLACK_APP_TOKEN",
        ),
    ],
)
async def test_a_start_that_cannot_work_says_what_to_do(
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Stack], Awaitable[None]] | None,
    changes: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setattr(web, "START_WITHIN_S", 0.0)
    if harm is not None:
        await harm(stack)

    with pytest.raises(SettingsError, match=words):
        async with stack.running(**changes):
            pass


async def test_a_port_in_use_is_named(stack: Stack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(SettingsError, match=f"127.0.0.1:{port} cannot be used"):
            async with stack.running(port=port):
                pass


@pytest.mark.parametrize("method", ["auth.test", "apps.connections.open"])
async def test_a_slack_that_is_away_while_the_bot_starts_is_asked_again(
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
) -> None:
    monkeypatch.setattr(web, "_FIRST_PAUSE_S", 0.01)
    for fault in ("http_500", "rate_limit", "http_500"):
        stack.sandbox.faults.plan(fault, method)
    stack.sandbox.faults.plan("refuse", "auth.test", error="team_added_to_org")

    async with stack.running(mode=SlackMode.SOCKET):
        card = await stack.card(await stack.refund())

    assert card
    assert "Slack does not answer" in caplog.text


@pytest.mark.parametrize("mode", [SlackMode.HTTP, SlackMode.SOCKET])
async def test_readiness_follows_the_store(
    stack: Stack, mode: SlackMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack.running(mode=mode):
        assert await stack.problems() == []

        failing(monkeypatch, stack.store.conn, "command", StoreUnavailable("gone"))
        assert await stack.problems() == ["gone"]
        monkeypatch.undo()


async def test_clicks_and_readyz_report_a_full_store(stack: Stack) -> None:
    stack.store.processes.life_ms = 400

    async def limit_memory(size: str) -> None:
        await stack.store.conn.command("CONFIG SET", "maxmemory", size)

    async def is_told() -> bool:
        return await stack.problems() == [NO_WRITES]

    async def is_ready() -> bool:
        return not await stack.problems()

    async with stack.running():
        verdict = await stack.refund()
        await stack.card(verdict)
        try:
            await limit_memory("1")
            await stack.click(verdict, Action.APPROVE)
            await stack.told("U0ANA", "nothing was recorded")
            await eventually(is_told)
        finally:
            await limit_memory("0")

        await eventually(is_ready)
        await stack.click(verdict, Action.APPROVE)
        assert not (await stack.item(verdict)).is_pending


async def test_a_store_that_hangs_is_reported_in_time_for_a_probe(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hanging(*_: object) -> object:
        return await asyncio.Event().wait()

    async with stack.running() as bot, aiohttp.ClientSession() as session:
        scrape = bot.url.replace("/slack/events", "/metrics")
        with monkeypatch.context() as patch:
            patch.setattr(usable, "ANSWERED_WITHIN_S", 0.2)
            patch.setattr(stack.store.conn, "command", hanging)
            async with asyncio.timeout(4), session.get(scrape) as metrics:
                assert await stack.problems() == ["The store does not answer."]
                text = await metrics.text()

    assert (metrics.status, text) == (503, "The store does not answer.\n")


async def test_all_parts_of_a_process_are_checked_at_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def gateway() -> list[str]:
        asked.set()
        return ["The gateway does not work."]

    async def publisher(_: object) -> str:
        await asked.wait()
        return "The bot does not work."

    monkeypatch.setattr(Publisher, "problem", publisher)
    async with SlackBot(stack.config_with(), stack.reviews, others=gateway) as bot:
        found = await bot.problems()

    assert found == ["The bot does not work.", "The gateway does not work."]


@pytest.mark.parametrize("mode", [SlackMode.HTTP, SlackMode.SOCKET])
async def test_a_retry_is_not_dropped(stack: Stack, mode: SlackMode) -> None:
    async with stack.running(mode=mode):
        stack.sandbox.faults.plan_delivery("retry_headers")

        await stack.actor("U0DAN").say("#general", "@keyturn refund")

        async def is_asked() -> bool:
            return await stack.store.queue(stack.keys).depth() == 1

        await eventually(is_asked)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (StoreUnavailable("gone"), "cannot keep anything right now"),
        (ZeroDivisionError(), "went wrong on our side"),
        (TimeoutError(), "not confirmed"),
    ],
)
async def test_whatever_breaks_in_a_listener_ends_in_a_sentence(
    live: Stack,
    failure: Exception,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verdict = await live.refund()
    card = await live.card(verdict)

    failing(monkeypatch, ReviewService, "decide", failure)
    await live.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

    await live.told("U0ANA", words)


async def test_promised_work_ends_first(caplog: pytest.LogCaptureFixture) -> None:
    tasks, done = Tasks(), list[str]()

    async def first() -> None:
        await asyncio.sleep(0)
        tasks.later(second(), name="second")
        done.append("first")

    async def second() -> None:
        done.append("second")

    async def broken() -> None:
        raise ZeroDivisionError

    tasks.later(first(), name="first")
    tasks.later(broken(), name="broken")
    await tasks.drain(timeout_s=5)

    assert done == ["first", "second"]
    assert "task.failed name=broken" in caplog.text


async def test_endless_work_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()
    tasks.later(asyncio.sleep(3600), name="forever")

    await tasks.drain(timeout_s=0.01)

    assert "tasks.cancelled count=1" in caplog.text


NAME = "/refund-approvals"


async def test_the_bot_answers_to_its_command_name_only(each_stack: Stack) -> None:
    stack = each_stack
    stack.sandbox.workspace.commands = (NAME,)
    ana = stack.actor("U0ANA")
    async with stack.running(command=NAME):
        await ana.command(NAME, "help", CHANNEL)
        told = await stack.told("U0ANA", "What I do")
        await ana.open_home()
        home = await ana.wait_for(lambda state: state["home"])
        with pytest.raises(UserActionFailed):
            await ana.command("/approvals", "help", CHANNEL)

    assert f"{NAME} freeze tool" in told
    assert "/approvals`" not in told.replace(NAME, "")
    assert f"{NAME} delegate" in str(home)


PATHS = ("/healthz", "/readyz", "/metrics", "/slack/events")


async def statuses(url: str) -> list[int]:
    """Return the status of each path, the same for HEAD as for GET."""
    found: list[int] = []
    async with aiohttp.ClientSession() as session:
        for path in PATHS:
            async with session.get(f"{url}{path}") as answer:
                found.append(answer.status)
            async with session.head(f"{url}{path}") as head:
                assert head.status == answer.status, path
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


@pytest.mark.slow
@pytest.mark.parametrize("mode", [SlackMode.HTTP, SlackMode.SOCKET])
@pytest.mark.parametrize("event", ["tokens_revoked", "app_uninstalled"])
async def test_an_event_that_the_token_is_gone_turns_readiness_off(
    stack: Stack, event: str, mode: SlackMode, caplog: pytest.LogCaptureFixture
) -> None:
    stack.mode = mode
    stack.sandbox.workspace.events = (event,)
    async with stack.running(mode=mode):
        assert await stack.problems() == []

        with caplog.at_level(logging.ERROR):
            await stack.sandbox.control.uninstall_app()
            await stack.bot_is_quiet()

        why = "does not accept SLACK_BOT_TOKEN any more ('token_revoked')"
        assert why in str(await stack.problems())
        assert f"bot.token_lost event={event}" in caplog.text


async def test_a_revoked_token_is_noticed_without_an_event(stack: Stack) -> None:
    stack.sandbox.workspace.events = ()
    async with stack.running():
        await stack.sandbox.control.revoke_bot_token()
        assert await stack.problems() == []

        stack.sandbox.control.advance(CHECKED_S)

        assert await stack.problems()


async def test_what_happens_without_a_token_is_told_when_it_works_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyturn.bot.delivery.card_updater.BROKEN_S", 0.1)
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        await stack.bot_is_quiet()
        await stack.sandbox.control.uninstall_app()

        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
        later = await stack.refund(thread="t2")
        await eventually(stack.problems)
        stack.sandbox.control.restore_bot_token()
        stack.sandbox.control.advance(REJECTED_S)

        assert (await stack.card(later))["ts"]
        assert await stack.problems() == []
        await stack.told("U0ANA", "Slack did not say who you are")
        assert (await stack.item(verdict)).state is ItemState.PENDING
