"""A bot with a revoked token reports it, keeps its work, and recovers."""

from __future__ import annotations

import logging

import aiohttp
import pytest

from keyturn.bot.ids import Action
from keyturn.bot.web import CHECKED_S, REJECTED_S
from keyturn.gateway.config import SlackMode
from keyturn.gateway.protocol.records import ItemState
from tests.bot.bot_stack import CHANNEL, Stack
from tests.conftest import eventually


async def readiness(stack: Stack) -> tuple[int, list[str]]:
    assert stack.bot
    url = stack.bot.url.replace("/slack/events", "/readyz")
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        body = await response.json()
        return response.status, body.get("problems", [])


async def is_not_ready(stack: Stack) -> bool:
    return (await readiness(stack))[0] == 503


@pytest.mark.slow
@pytest.mark.parametrize("mode", [SlackMode.HTTP, SlackMode.SOCKET])
@pytest.mark.parametrize("event", ["tokens_revoked", "app_uninstalled"])
async def test_an_event_that_the_token_is_gone_turns_readiness_off(
    stack: Stack, event: str, mode: SlackMode, caplog: pytest.LogCaptureFixture
) -> None:
    stack.mode = mode
    stack.sandbox.workspace.events = (event,)
    async with stack.running(mode=mode):
        assert await readiness(stack) == (200, [])

        with caplog.at_level(logging.ERROR):
            await stack.sandbox.control.uninstall_app()
            await stack.bot_is_quiet()

        status, problems = await readiness(stack)
        assert status == 503
        assert "does not accept SLACK_BOT_TOKEN any more ('token_revoked')" in str(
            problems
        )
        assert f"bot.token_lost event={event}" in caplog.text


async def test_a_revoked_token_is_noticed_without_an_event(stack: Stack) -> None:
    stack.sandbox.workspace.events = ()
    async with stack.running():
        await stack.sandbox.control.revoke_bot_token()
        assert (await readiness(stack))[0] == 200

        stack.sandbox.control.advance(CHECKED_S)

        assert (await readiness(stack))[0] == 503


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
        await eventually(lambda: is_not_ready(stack))
        stack.sandbox.control.restore_bot_token()
        stack.sandbox.control.advance(REJECTED_S)

        assert (await stack.card(later))["ts"]
        assert (await readiness(stack))[0] == 200
        await stack.told("U0ANA", "Slack did not say who you are")
        assert (await stack.approval(verdict)).items[0].state is ItemState.PENDING
